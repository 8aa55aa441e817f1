"""What the scheduler's core does, as metrics, as spans and as timelines on their way to the gateways."""

from collections import defaultdict
from typing import NamedTuple

from services.scheduler.job import Job
from services.scheduler.recent import RecentJobs
from services.scheduler.spans import JobSpans, wall_clock
from shared.ids import StepId
from shared.messages import FinishReason, Timeline
from shared.metrics import Registry
from shared.tracing import Tracing


class _EndedJob(NamedTuple):
    job: Job
    timeline: Timeline
    reason: FinishReason


class JobObserver:
    """Jobs that end are put aside until `report_ended`: there is time for them while the stages compute."""

    def __init__(self, tracing: Tracing, registry: Registry) -> None:
        self.recent = RecentJobs()
        self._spans = JobSpans(tracing)
        self._ended: list[_EndedJob] = []
        self._queue_time = registry.histogram(
            "skipjoin_queue_time_seconds", "From arrival to the first iteration."
        )
        self._preempted = registry.counter(
            "skipjoin_preemptions", "Times that a job which could have gone on made way for others."
        )
        self._finished = registry.counter("skipjoin_jobs_finished", "Jobs ended, by reason.", ["reason"])

    def dispatched(self, job: Job, now: float) -> str | None:
        if job.first_run is None:
            self._queue_time.observe(now - job.arrived)
        return self._spans.prefill(job) if job.kv_tokens <= job.cached else None

    def completed(self, job: Job, now: float) -> None:
        self.recent.token(job, now)

    def preempted(self, job: Job, now: float) -> None:
        self._preempted.inc()

    def iterated(self, step_id: StepId, batch: list[Job], began: float, now: float) -> None:
        self._spans.iteration(step_id, batch, began, now)

    def finished(self, job: Job, reason: FinishReason, now: float, timeline: Timeline) -> None:
        self.recent.end(job)
        self._finished.labels(reason.value).inc()
        self._ended.append(_EndedJob(job, timeline, reason))

    def report_ended(self, now: float) -> dict[str, list[Timeline]]:
        """Make the spans of the jobs that have ended; their timelines by receiver."""
        ended, self._ended = self._ended, []
        wall = wall_clock(now)
        timelines: defaultdict[str, list[Timeline]] = defaultdict(list)
        for each in ended:
            self._spans.job(each.job, each.timeline, each.reason, wall)
            if each.job.request_id:  # else it is the profiler's
                timelines[each.job.reply_to].append(each.timeline)
        return timelines
