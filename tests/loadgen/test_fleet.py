"""Many pipelines on one clock, what is kept of them, and the router in front."""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from loadgen.simulate import fleet
from loadgen.simulate.bounded import BoundedLedger
from loadgen.simulate.capacity import sustained, work
from loadgen.simulate.gaps import GapHistogram
from loadgen.simulate.models import MODELS
from loadgen.simulate.pipeline import INFINITY, Pipeline
from loadgen.simulate.results import Spread, summarise
from loadgen.simulate.router import FleetRouter
from loadgen.simulate.scenario import Scenario
from loadgen.workload import lengths
from loadgen.workload.requests import Request, stream, synthetic
from shared.errors import SkipjoinError
from shared.ids import JobId
from tests.loadgen.test_command import result, simulate

OPT = MODELS["opt-13b"]
TIGHT = msgspec.structs.replace(OPT, device_tokens=2048, host_bytes=4096 * OPT.kv_bytes)
"""Room for few jobs: they are swapped and recomputed."""


def load(count: int, rate: float, seed: int = 1) -> list[Request]:
    return synthetic(lengths.named("alpaca"), count, rate, 1.0, seed)


@pytest.mark.parametrize("stages", [1, 2])
def test_a_pipeline_that_is_advanced_in_any_steps_does_the_same(stages: int) -> None:
    requests = load(80, 20.0)
    scenario = Scenario(TIGHT, starvation_s=1.0, stages=stages, overhead_s=0.003)
    whole = scenario.run(requests)
    pipeline = Pipeline(scenario.config(), TIGHT, 0.003)
    for request in requests:
        for part in (0.3, 0.6, 1.0):
            pipeline.advance(part * request.arrival)
        pipeline.submit(request)
    assert msgspec.json.encode(pipeline.finish()) == msgspec.json.encode(whole)
    assert pipeline.next_event_at == INFINITY


def test_advancing_stops_before_the_instant_so_that_arrivals_join_its_plan() -> None:
    pipeline = Pipeline(Scenario(OPT).config(), OPT)
    pipeline.submit(Request(0.0, 10, 3))
    pipeline.advance(0.0)
    assert pipeline.outcome.iterations == 0
    pipeline.submit(Request(0.0, 10, 3))
    pipeline.finish()
    assert pipeline.outcome.iterations == 3, "both jobs are in the same three"


def test_a_fleet_of_one_is_the_pipeline_and_keeps_the_same_figures() -> None:
    requests = load(150, 30.0)
    scenario = Scenario(TIGHT, starvation_s=1.0)
    whole = summarise(scenario.run(requests), 0.3)
    report = fleet.run(scenario, requests, replicas=1)
    for name in ("latency_per_token", "jct", "ttft"):
        assert msgspec.structs.astuple(getattr(report, name)) == pytest.approx(
            msgspec.structs.astuple(getattr(whole, name))
        ), name
    assert report.tbt.mean == pytest.approx(whole.tbt.mean)
    assert report.tbt.p95 == pytest.approx(whole.tbt.p95, rel=0.02)
    assert whole.recomputes + whole.swaps_out > 0
    for name in ("jobs", "iterations", "preemptions", "recomputes", "throughput"):
        assert getattr(report, name) == pytest.approx(getattr(whole, name)), name
    assert report.swaps == whole.swaps_out + whole.swaps_in


def test_replicas_share_the_load() -> None:
    scenario, replicas = Scenario(OPT, "fcfs"), 4
    rate = 0.8 * replicas * sustained(OPT, lengths.named("alpaca"))
    report = fleet.run(scenario, load(400, rate), replicas)
    assert report.jobs == 400
    assert report.replica_jobs.least > 0.7 * report.replica_jobs.mean
    alone = summarise(scenario.run(load(100, rate / replicas)), 0.3)
    assert report.latency_per_token.mean < 1.5 * alone.latency_per_token.mean


def test_the_router_avoids_the_replica_with_long_prompts() -> None:
    router = FleetRouter(OPT, replicas=2, batch=16)
    first = router.choose(1000)
    router.assigned(first, JobId(0), prompt=1000)
    other = 1 - first
    assert [router.choose(10) for _ in range(2)] == [other, other], "to ask assigns nothing"
    router.assigned(other, JobId(0), prompt=10)
    assert router.choose(10) == other, "the long prompt weighs more"
    router.progressed(first, JobId(0), 1)
    router.assigned(other, JobId(1), prompt=10)
    assert router.choose(10) == first, "it is computed by now"
    router.ended(other, JobId(0), output=20)
    router.ended(other, JobId(1), output=0)
    assert router.choose(10) == other


def test_a_refused_request_is_counted_and_leaves_no_work_behind() -> None:
    report = fleet.run(Scenario(TIGHT), [Request(0.0, 1000, 2000), Request(0.0, 10, 5)], replicas=2)
    assert (report.jobs, report.refused) == (1, 1)


def test_only_open_jobs_are_held() -> None:
    ledger = BoundedLedger(lambda *_: None)
    pipeline = Pipeline(Scenario(OPT).config(), OPT, ledger=ledger)
    held: list[int] = []
    for request in load(200, 5.0):
        pipeline.advance(request.arrival)
        pipeline.submit(request)
        held.append(ledger.open_jobs)
    assert max(held) == ledger.most_open < 20
    assert len(pipeline.finish().records) == 0
    assert (ledger.open_jobs, len(ledger.latencies)) == (0, 200)


def test_requests_are_drawn_one_after_another() -> None:
    requests = stream(lengths.named("alpaca"), 10_000, 2.0, 1.0, 3)
    assert isinstance(requests, Iterator)
    assert list(requests) == synthetic(lengths.named("alpaca"), 10_000, 2.0, 1.0, 3)


def test_counted_gaps_have_the_quantiles_of_the_gaps() -> None:
    draw = np.random.default_rng(0).lognormal(-3, 1.5, 5000)
    halves = GapHistogram(), GapHistogram()
    for number, gap in enumerate(draw.tolist()):
        halves[number % 2].add(gap)
    counted, exact = halves[0].spread(halves[1]), Spread.of(draw)
    assert msgspec.structs.astuple(counted) == pytest.approx(msgspec.structs.astuple(exact), rel=0.02)
    assert GapHistogram().spread() == Spread(0.0, 0.0, 0.0, 0.0)


def test_gaps_beyond_the_bins_count_to_the_outermost() -> None:
    gaps = GapHistogram()
    for seconds in (0.0, 1e9):
        gaps.add(seconds)
    assert gaps.spread().p50 == pytest.approx(1e-5, rel=0.02)
    assert gaps.spread().p99 == pytest.approx(1e5, rel=0.02)


@pytest.mark.parametrize("stages", [1, 2])
def test_the_capacity_is_what_run_to_completion_holds(stages: int) -> None:
    rate = sustained(OPT, lengths.named("constant:100:60"), stages=stages)
    requests = synthetic(lengths.named("constant:100:60"), 300, 10 * rate, 1.0, 0)
    outcome = Scenario(
        msgspec.structs.replace(OPT, device_tokens=100_000), "fcfs", stages=stages
    ).run(requests)  # fmt: skip
    assert len(requests) / outcome.seconds == pytest.approx(rate, rel=0.1)
    assert work(OPT, 100.0, 60.0, stages=stages) == pytest.approx(1 / rate)


def test_the_command_reports_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("scale", "--requests", "60", "--replicas", "3", "--rate", "20", "--policy", "fcfs")
    report = result(tmp_path, *arguments)["report"]
    assert (report["jobs"], report["replicas"]) == (60, 3)
    assert json.dumps(report["iterations"]) in capsys.readouterr().out.replace(",", "")


@pytest.mark.parametrize(
    ("option", "value"), [("--requests", "0"), ("--replicas", "0"), ("--rate", "-1"), ("--policy", "no")]
)
def test_mistakes_name_the_option_and_the_value(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate("scale", "--requests", "5", option, value) == 2
    message = capsys.readouterr().err
    assert option.lstrip("-") in message
    assert value in message


def test_a_lost_job_is_noticed() -> None:
    scenario = Scenario(OPT)
    pipeline = Pipeline(scenario.config(), OPT)
    pipeline.ledger.arrived(Request(0.0, 10, 3))  # nobody told the scheduler
    with pytest.raises(SkipjoinError, match="1 jobs never ended"):
        pipeline.finish()
