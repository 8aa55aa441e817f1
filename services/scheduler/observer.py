"""Spans and metrics of jobs, as the scheduler moves them from state to state."""

import time

from opentelemetry.trace import Span, StatusCode

from services.scheduler.job import Job
from services.scheduler.recent import RecentJobs
from shared.ids import JobId
from shared.messages import FinishReason
from shared.metrics import Registry
from shared.tracing import Tracing, traceparent_of


class JobSpans:
    """queued (arrival to first iteration), prefill (each time the whole prompt is computed), decode (first
    token to the end, with its preemptions counted).
    """

    def __init__(self, tracing: Tracing, registry: Registry) -> None:
        self._tracing = tracing
        self._prefill: dict[JobId, Span] = {}
        self._decode: dict[JobId, Span] = {}
        self._preemptions: dict[JobId, int] = {}
        self.recent = RecentJobs()
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
            if job.trace is not None:
                self._tracing.past("queued", job.trace, now - job.arrived, time.time_ns(), level=job.level)
        if job.trace is None or job.kv_tokens > job.cached or not self._tracing.enabled:
            return None
        recomputed = bool(job.output)
        span = self._tracing.start(
            "prefill", job.trace, tokens=job.new_tokens, cached=job.cached, recomputed=recomputed
        )
        unfinished = self._prefill.pop(job.job_id, None)
        if unfinished is not None:
            unfinished.end()  # dropped between two parts of its prompt
        self._prefill[job.job_id] = span
        return traceparent_of(span)

    def completed(self, job: Job, now: float) -> None:
        self.recent.token(job, now)
        prefill = self._prefill.pop(job.job_id, None)
        if prefill is not None:
            prefill.end()
            if job.job_id not in self._decode:
                self._decode[job.job_id] = self._tracing.start("decode", job.trace)

    def preempted(self, job: Job, now: float) -> None:
        self._preempted.inc()
        if job.job_id in self._decode:
            self._preemptions[job.job_id] = self._preemptions.get(job.job_id, 0) + 1

    def finished(self, job: Job, reason: FinishReason, now: float) -> None:
        self.recent.end(job)
        self._finished.labels(reason.value).inc()
        preemptions = self._preemptions.pop(job.job_id, 0)
        for span in (self._prefill.pop(job.job_id, None), self._decode.pop(job.job_id, None)):
            if span is None:
                continue
            span.set_attribute("tokens", len(job.output))
            span.set_attribute("preemptions", preemptions)
            span.set_attribute("finish_reason", reason.value)
            if reason in (FinishReason.ABORT, FinishReason.ERROR):
                span.set_status(StatusCode.ERROR, reason.value)
            span.end()
