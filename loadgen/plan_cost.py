"""Prints what one scheduling decision costs as the queue grows (budget: 1 ms at 10,000 jobs).

python -m loadgen.plan_cost [--jobs 100 10000 1000000] [--policy skip-join fcfs]
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from services.kvcache.core import KVCache
from services.scheduler.core import Observer, Scheduler
from services.scheduler.job import Job
from services.scheduler.policy import POLICIES
from shared.config import parse
from shared.costmodel import CostModel
from shared.ids import JobId, StepId
from shared.messages import FinishReason, Limits, PlanReply, Sampling, StepResult, Submit, Timeline

COST = CostModel(0.02, 1e-3, 0.0, 0.02, 0.0, 5e-3, samples=1)
ITERATIONS = 300


class Unobserved(Observer):
    def dispatched(self, job: Job, now: float) -> str | None:
        return None

    def completed(self, job: Job, now: float) -> None: ...

    def preempted(self, job: Job, now: float) -> None: ...

    def iterated(self, step_id: StepId, batch: list[Job], began: float, now: float) -> None: ...

    def finished(self, job: Job, reason: FinishReason, now: float, timeline: Timeline) -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, nargs="+", default=[100, 1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument(
        "--policy", nargs="+", default=["skip-join", "fcfs", "fair"], choices=sorted(POLICIES)
    )
    options = parser.parse_args()
    print("Median per iteration, batch 16, µs: scheduler plan / KV plan / dispatch and complete\n")
    print("| policy | " + " | ".join(f"{jobs:,} jobs" for jobs in options.jobs) + " |")
    print("|---|" + "---|" * len(options.jobs))
    for policy in options.policy:
        cells = [" / ".join(f"{1e6 * seconds:.0f}" for seconds in measure(policy, n)) for n in options.jobs]
        print(f"| {policy} | " + " | ".join(cells) + " |", flush=True)


def measure(policy: str, jobs: int) -> tuple[float, float, float]:
    """Median seconds of the three parts of an iteration with `jobs` jobs queued."""
    config = parse({"scheduler": {"policy": policy}, "kv": {"device_blocks": 4096, "host_blocks": 100_000}})
    scheduler = Scheduler(config, Unobserved(), Limits(100_000, 65_536))
    scheduler.set_cost_model(COST)
    kv = KVCache(config.kv, 1)
    prompts = {length: [1] * length for length in (16, 64, 256, 1024)}
    for number in range(jobs):
        prompt = prompts[(16, 64, 256, 1024)[number % 4]]
        submit = Submit(
            JobId(number),
            "gateway",
            prompt,
            200,
            Sampling(0.0),
            tenant=str(number % 10),
            predicted_output=200,
        )
        scheduler.submit(submit, None, 0.0)
    costs = list(iterations(scheduler, kv, ITERATIONS, time.perf_counter))
    return (
        statistics.median(cost.scheduler for cost in costs),
        statistics.median(cost.kv for cost in costs),
        statistics.median(cost.rest for cost in costs),
    )


class Cost(NamedTuple):
    """Of one iteration, seconds: the scheduler's plan, the KV plan, dispatch and completion."""

    scheduler: float
    kv: float
    rest: float
    reply: PlanReply


def iterations(scheduler: Scheduler, kv: KVCache, count: int, clock: Callable[[], float]) -> Iterator[Cost]:
    """Run so many, each as long as COST says and with its copies done at once. clock: seconds"""
    now = 0.0
    for _ in range(count):
        began = clock()
        request = scheduler.plan_request(now)
        assert request is not None
        planned = clock()
        reply = kv.plan(request)
        granted = clock()
        for directive in reply.directives:
            kv.transfer_done(directive.transfer_id, 0, 0)
        dispatching = clock()
        step = scheduler.dispatch(reply, now)
        if step is not None and step.jobs:
            now += COST.seconds(step.load())
            scheduler.complete(StepResult(step.step_id, [7] * len(step.jobs), [0.03], [0.0]), now)
        yield Cost(planned - began, granted - planned, clock() - dispatching, reply)


if __name__ == "__main__":
    main()
