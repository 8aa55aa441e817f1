"""Pipelines to look at: as many jobs as are asked for, in queues that look like real ones."""

import itertools

from services.gateway.pipeline_view import PipelineView
from shared.ids import JobId
from shared.messages import JobView, KVView, Latency, QueueView, SchedulerView, TierView

LISTED = 100
LEVELS = 16
STATES = ("running", "preempted", "waiting")


def scheduler_view(
    jobs: int, *, at: float = 0.0, tokens: int = 0, batch: int = 16, levels: int = LEVELS
) -> SchedulerView:
    """`jobs` of them: a batch runs, half of the others wait in the first queues, the rest were preempted."""
    of_level: list[list[JobView]] = [[] for _ in range(levels)]
    for number in range(jobs):
        state = "running" if number < batch else ("preempted", "waiting")[number % 2]
        level = number % 3 if state == "waiting" else number * 7 % max(1, levels // 2)
        waits = 0.0 if state == "running" else number * 0.05
        output = 0 if state == "waiting" else number * 3 % 500
        of_level[level].append(JobView(JobId(number + 1), state, output, 10 + number % 400, 0, waits))
    queues = [
        QueueView(
            level,
            0.05 * 2**level,
            *(sum(job.state == state for job in each) for state in ("waiting", "running", "preempted")),
            sorted(each, key=lambda job: STATES.index(job.state))[:LISTED],
        )
        for level, each in enumerate(of_level)
    ]
    seen = Latency(tokens, 0.25, 1.8) if tokens else Latency()
    return SchedulerView(
        at, "skip-join", queues, [min(batch, jobs)] if jobs else [], batch, tokens // 16, tokens,
        tokens // 100, [at * 0.9, at * 0.4], seen, Latency(tokens, 0.05, 0.3) if tokens else Latency(),
    )  # fmt: skip


def kv_view(held: float = 0.6) -> KVView:
    """held: share of the device tier"""
    device = TierView("device", 1024, round(1024 * held), 40, 0)
    return KVView([device, TierView("host", 2048, 500, 24, 700)])


class Pipelines:
    """Views as a fake engine gives them: each look finds the pipelines half a second later."""

    def __init__(self, jobs: int, count: int = 1) -> None:
        self.jobs = jobs
        self.count = count
        self.failure = ""
        self.instance = "scheduler-1"
        self._looks = itertools.count(1)

    def __call__(self) -> list[PipelineView]:
        at = next(self._looks) / 2
        return [
            PipelineView(
                index, self.failure, self.instance,
                scheduler_view(self.jobs, at=at, tokens=round(at * 320)), kv_view(),
            )
            for index in range(self.count)
        ]  # fmt: skip
