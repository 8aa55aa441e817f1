"""The simulated pipeline: the cores' promises, and times that can be worked out by hand."""

import msgspec
import pytest

from loadgen.simulate import example
from loadgen.simulate.copies import StageCopies
from loadgen.simulate.ledger import JobRecord
from loadgen.simulate.models import MODELS, ModelProfile
from loadgen.simulate.pipeline import Outcome, Pipeline
from loadgen.simulate.results import summarise
from loadgen.simulate.scenario import Scenario
from loadgen.workload import lengths
from loadgen.workload.requests import Request, synthetic
from services.scheduler.policy import POLICIES
from shared.config import parse
from shared.costmodel import BatchLoad, CostModel
from shared.errors import ConfigError
from shared.ids import JobId, TransferId
from shared.messages import Direction, Directive, Move

COST = CostModel(0.0, 0.1, 0.0, 1.0, 0.0, 0.0, samples=1)
"""Prefill takes 0.1 s a token, a decode iteration 1 s whatever is in it."""

TINY = ModelProfile(
    "tiny", COST, kv_bytes=100, device_tokens=64, host_bytes=100 * 640, bandwidth=100.0, launch_s=0.25
)
"""One token's KV takes 1 s to copy."""

EXPECTED = {
    "fcfs": ([6, 8, 11], 4.17),
    "mlfq": ([9, 10, 11], 5),
    "skip-join": ([11, 4, 5], 3.33),
    "srpt": ([11, 2, 5], 3),
}


@pytest.mark.parametrize("policy", example.POLICIES)
def test_the_papers_example(policy: str) -> None:
    result = example.run()["policies"][policy]
    completions, mean = EXPECTED[policy]
    assert result == {
        "completion": dict(zip(("J1", "J2", "J3"), completions, strict=True)),
        "mean_per_token": mean,
    }


def swapping(policy: str = "skip-join", **scheduler: object) -> Outcome:
    """OPT-13B with room for few jobs under more load than it can carry: swaps and recomputations."""
    model = msgspec.structs.replace(MODELS["opt-13b"], device_tokens=4096, host_bytes=8192 * 819_200)
    requests = synthetic(lengths.named("constant:100:60"), 60, 40.0, 1.0, 1)
    return Scenario(model, policy, **scheduler).run(requests)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("stages", [1, 3])
def test_every_job_ends_with_all_its_tokens_and_no_block_is_lost(policy: str, stages: int) -> None:
    outcome = swapping(policy, stages=stages)  # raises if the cores lose a block
    assert all(record.finished and len(record.token_times) == 60 for record in outcome.records)
    assert all(record.token_times == sorted(record.token_times) for record in outcome.records)
    assert outcome.computed_tokens >= 60 * (100 + 59)


def test_pressure_swaps_and_recompute_does_not() -> None:
    assert swapping(starvation_s=1.0).swaps[Direction.OUT] > 0
    recomputed = swapping(starvation_s=1.0, swap_mode="recompute")
    assert recomputed.swaps[Direction.OUT] == 0
    assert sum(record.recomputes for record in recomputed.records) > 0


def test_the_same_seed_gives_the_same_run() -> None:
    assert msgspec.json.encode(swapping()) == msgspec.json.encode(swapping())


def test_a_job_that_can_never_fit_is_refused_and_counted() -> None:
    outcome = Scenario(TINY).run([Request(0.0, 60, 10), Request(0.0, 10, 2)])
    summary = summarise(outcome, 1.0)
    assert (summary.jobs, summary.refused) == (1, 1)


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(ConfigError, match=r"nonsense.*skip-join"):
        Scenario(TINY, "nonsense").config()


def test_stages_share_an_iteration_and_a_prefill_costs_each_of_them_more() -> None:
    model = MODELS["opt-13b"]
    decode, prefill = BatchLoad(decode_jobs=1, decode_context=100), BatchLoad(100, 10_000)
    assert model.stage_seconds(decode, 2) == pytest.approx(model.cost.seconds(decode) / 2)
    assert model.stage_seconds(prefill, 2) == pytest.approx(model.cost.seconds(prefill) / 2 + 0.002)
    assert model.stage_seconds(prefill, 1) == pytest.approx(model.cost.seconds(prefill))


def test_one_job_passes_through_two_stages() -> None:
    outcome = Scenario(msgspec.structs.replace(TINY, stage_prefill_s=0.0), stages=2).run(
        [Request(1.0, 10, 3)]
    )
    assert outcome.records[0].token_times == pytest.approx([2.0, 3.0, 4.0])


def test_overhead_is_paid_once_an_iteration() -> None:
    outcome = Scenario(TINY, overhead_s=0.5).run([Request(0.0, 10, 3)])
    assert outcome.records[0].token_times == pytest.approx([1.5, 3.0, 4.5])


def test_a_copy_takes_its_launches_and_its_bytes() -> None:
    copies = StageCopies(TINY, stages=2, block_size=16)
    out = Directive(TransferId(1), JobId(1), Direction.OUT, [Move(0, 0, 2), Move(5, 9, 1)])
    after = Directive(TransferId(2), JobId(2), Direction.OUT, [Move(3, 3, 1)])
    back = Directive(TransferId(3), JobId(3), Direction.IN, [Move(4, 4, 1)])
    # 2 launches, and 48 tokens of which this stage holds half.
    assert copies.start(out, 10.0) == pytest.approx(10 + 2 * 0.25 + 24.0)
    assert copies.start(after, 11.0) == pytest.approx(10 + 24.5 + 0.25 + 8.0), "waits for the one before"
    assert copies.start(back, 11.0) == pytest.approx(11 + 0.25 + 8.0), "the other direction is free"
    copies.complete(TransferId(3))
    assert copies.done_at(TransferId(3)) < 11.0


def test_a_step_waits_for_its_own_swap_in_and_the_stall_is_recorded() -> None:
    """Device blocks for one of two jobs, shortest prompt first:

     0 s  J1 (20 tokens) prefills      2 s  its first token; J2 (10 tokens) has arrived and needs room
     2 s  J1's 2 blocks go out: 2 · 16 s and one launch      34.25 s  J2 prefills
    35.25 s  J2 ends; J1's blocks come in: 32.25 s, which its step waits for
    67.5 s   J1's second iteration    68.5 s  J1 ends
    """
    scheduler = {"policy": "fixed-priority", "max_batch_size": 1}
    kv = {"block_size": 16, "device_blocks": 2, "host_blocks": 8}
    pipeline = Pipeline(parse({"scheduler": scheduler, "kv": kv}), TINY)
    outcome = pipeline.run([Request(0.0, 20, 2), Request(1.0, 10, 1)])
    long, short = outcome.records
    assert short.token_times == pytest.approx([35.25])
    assert long.token_times == pytest.approx([2.0, 68.5])
    assert (long.swaps, long.stalled) == (2, pytest.approx(32.25))
    assert outcome.stalled == pytest.approx(32.25)
    assert outcome.blocked == pytest.approx(32.25), "nothing ran while the blocks went out"
    assert summarise(outcome, 1.0).swap_share == pytest.approx(32.25 / (68.5 + 34.25))


def test_figures_of_a_run() -> None:
    records = [
        JobRecord(0.0, 5, 2, [1.0, 2.0], finished=True),
        JobRecord(1.0, 5, 4, [3.0, 4.0, 5.0, 9.0], finished=True),
    ]
    summary = summarise(Outcome(records, seconds=10.0), slo_s=1.5)
    assert summary.latency_per_token.mean == pytest.approx((2 / 2 + 8 / 4) / 2)
    assert summary.jct.mean == pytest.approx(5.0)
    assert summary.ttft.mean == pytest.approx(1.5)
    assert summary.tbt.mean == pytest.approx((1 + 1 + 1 + 4) / 4)
    assert (summary.goodput, summary.slo_share) == (pytest.approx(0.1), 0.5)
