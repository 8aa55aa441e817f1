"""Many replicas of a pipeline behind one router: what holds at the size of a fleet.

    requests ──> router ──> replica 0 … replica R-1        one virtual clock for all
                   ^────────── ended ──┘

All replicas are advanced to an arrival before it is routed, so that the router knows what had ended by then,
and nothing later. What a run keeps grows by three numbers per request.
"""

import resource
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec
import numpy as np

from loadgen.simulate.bounded import BoundedLedger
from loadgen.simulate.pipeline import Pipeline
from loadgen.simulate.results import Floats, Spread
from loadgen.simulate.router import FleetRouter
from loadgen.simulate.scenario import Scenario
from loadgen.workload.requests import Request

PROGRESS_EVERY = 1000
"""Requests between two calls of `progress`."""

Progress = Callable[[int, int], None]
"""(requests routed, iterations so far)"""


class Balance(msgspec.Struct, frozen=True):
    """Over the replicas."""

    least: float
    mean: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Balance":
        return cls(min(values), sum(values) / len(values), max(values))


class FleetReport(msgspec.Struct, frozen=True):
    """latency_per_token … tbt: seconds, over all jobs
    throughput, tokens_per_s: ended jobs and output tokens a second, first arrival to last token
    replica_jobs, replica_latency, replica_busy, replica_most_open: per replica, ended jobs, mean latency per
        token (seconds), share of the time that a stage computed, and most unfinished jobs at once
    seconds: on the virtual clock; wall_s: of this process; memory_mib: its peak
    """

    replicas: int
    jobs: int
    refused: int
    latency_per_token: Spread
    jct: Spread
    ttft: Spread
    tbt: Spread
    throughput: float
    tokens_per_s: float
    replica_jobs: Balance
    replica_latency: Balance
    replica_busy: Balance
    replica_most_open: Balance
    preemptions: int
    swaps: int
    recomputes: int
    iterations: int
    seconds: float
    wall_s: float
    iterations_per_minute: float
    memory_mib: float


def run(
    scenario: Scenario, requests: Iterable[Request], replicas: int, progress: Progress = lambda *_: None
) -> FleetReport:
    """Until every request has ended. Requests are in the order of their arrival.

    Raises ConfigError for an unknown policy, Stalled if a core leaves jobs waiting for nothing.
    """
    began = time.perf_counter()
    config = scenario.config()
    router = FleetRouter(scenario.model, replicas, scenario.batch)
    ledgers = [
        BoundedLedger(partial(router.ended, replica), partial(router.progressed, replica))
        for replica in range(replicas)
    ]
    fleet = [Pipeline(config, scenario.model, scenario.overhead_s, ledger) for ledger in ledgers]
    first: float | None = None
    for number, request in enumerate(requests, 1):
        first = request.arrival if first is None else first
        for pipeline in fleet:
            pipeline.advance(request.arrival)
        replica = router.choose(request.prompt)
        router.assigned(replica, ledgers[replica].next_id, request.prompt)
        fleet[replica].submit(request)
        if number % PROGRESS_EVERY == 0:
            progress(number, sum(pipeline.outcome.iterations for pipeline in fleet))
    for pipeline in fleet:
        pipeline.finish()
    return _report(fleet, ledgers, first or 0.0, time.perf_counter() - began)


def _report(
    fleet: Sequence[Pipeline], ledgers: Sequence[BoundedLedger], first: float, wall_s: float
) -> FleetReport:
    latencies, outputs = ([np.array(values) for values in column] for column in zip(
        *((ledger.latencies, ledger.outputs) for ledger in ledgers), strict=True
    ))  # fmt: skip
    each: list[Floats] = [latency / output for latency, output in zip(latencies, outputs, strict=True)]
    seconds = max(pipeline.outcome.seconds for pipeline in fleet)
    span = max(seconds - first, 1e-9)
    jobs, iterations = sum(map(len, each)), sum(pipeline.outcome.iterations for pipeline in fleet)
    gaps = [ledger.gaps for ledger in ledgers]
    return FleetReport(
        replicas=len(fleet),
        jobs=jobs,
        refused=sum(ledger.refusals for ledger in ledgers),
        latency_per_token=Spread.of(np.concatenate(each)),
        jct=Spread.of(np.concatenate(latencies)),
        ttft=Spread.of(np.concatenate([np.array(ledger.first_tokens) for ledger in ledgers])),
        tbt=gaps[0].spread(*gaps[1:]),
        throughput=jobs / span,
        tokens_per_s=sum(float(output.sum()) for output in outputs) / span,
        replica_jobs=Balance.of([len(values) for values in each]),
        replica_latency=Balance.of([float(values.mean()) if len(values) else 0.0 for values in each]),
        replica_busy=Balance.of([pipeline.outcome.busy / span for pipeline in fleet]),
        replica_most_open=Balance.of([ledger.most_open for ledger in ledgers]),
        preemptions=sum(ledger.preemptions for ledger in ledgers),
        swaps=sum(ledger.swaps for ledger in ledgers),
        recomputes=sum(ledger.recomputes for ledger in ledgers),
        iterations=iterations,
        seconds=seconds,
        wall_s=wall_s,
        iterations_per_minute=60 * iterations / wall_s,
        memory_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )
