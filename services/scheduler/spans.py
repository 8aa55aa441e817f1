"""OpenTelemetry spans of jobs and iterations.

A job's spans are made from its timeline when it has ended: an iteration costs one span for all of its jobs,
and a segment costs nothing before. Only prefills are named beforehand, because the stages report below them.
"""

import time
from collections import deque
from collections.abc import Callable

from opentelemetry.trace import Link, SpanContext

from services.scheduler.job import Job
from services.scheduler.timeline import merged
from shared.ids import JobId, StepId
from shared.messages import FinishReason, JobState, Segment, Timeline
from shared.tracing import Tracing, span_context_of

WallClock = Callable[[float], int]

MOST_SPANS = 128
"""Of one job, so that no answer floods the collector; segments are merged until they are no more."""

_FAILED = frozenset({FinishReason.ABORT, FinishReason.ERROR, FinishReason.REFUSED})
_PREFILLS = frozenset({JobState.PREFILL, JobState.RECOMPUTE})


class JobSpans:
    """Times are seconds on the scheduler's clock; spans are stamped by this host's wall clock."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._prefills: dict[JobId, deque[str]] = {}
        self._requests: dict[JobId, SpanContext] = {}

    def prefill(self, job: Job) -> str | None:
        """W3C traceparent of the prefill that begins now; None if it is not recorded."""
        if job.trace is None or not self._tracing.enabled:
            return None
        reserved = self._tracing.reserve(job.trace)
        self._prefills.setdefault(job.job_id, deque()).append(reserved)
        return reserved

    def iteration(self, step_id: StepId, batch: list[Job], began: float, now: float) -> None:
        """A span of its own, linked to the requests in it; none if none of them is recorded."""
        if not self._tracing.enabled:
            return
        links = [Link(self._request_of(job)) for job in batch if job.trace is not None]
        if links:
            attributes = {
                "step": step_id,
                "batch": len(batch),
                "tokens": sum(job.computing for job in batch),
            }
            wall = wall_clock(now)
            self._tracing.record("iteration", None, wall(began), wall(now), attributes, links=links)

    def job(self, job: Job, timeline: Timeline, reason: FinishReason, wall: WallClock) -> None:
        """All segments of a job that has ended."""
        reserved = self._prefills.pop(job.job_id, deque())
        self._requests.pop(job.job_id, None)
        if job.trace is None or not self._tracing.enabled:
            return
        segments = [segment for segment in timeline.segments if segment.state is not JobState.GATEWAY]
        while len(segments) > MOST_SPANS:
            segments = merged(segments)
        for segment in segments:
            last = segment is segments[-1]
            self._tracing.record(
                segment.state.value,
                job.trace,
                wall(job.arrived + segment.start),
                wall(job.arrived + segment.end),
                _attributes(segment, job) | ({"finish_reason": reason.value} if last else {}),
                span=reserved.popleft() if reserved and segment.state in _PREFILLS else None,
                error=reason.value if last and reason in _FAILED else None,
            )

    def _request_of(self, job: Job) -> SpanContext:
        context = self._requests.get(job.job_id)
        if context is None:
            context = self._requests[job.job_id] = span_context_of(job.trace)
        return context


def _attributes(segment: Segment, job: Job) -> dict[str, str | int | list[str]]:
    attributes: dict[str, str | int | list[str]] = {
        "job": f"{job.job_id:016x}",
        "level": segment.level or 0,
    }
    if segment.iterations:
        attributes["iterations"] = segment.iterations
    if segment.displaced_by:
        attributes["displaced_by"] = segment.displaced_by
    if segment.reason is not None:
        attributes["reason"] = segment.reason
    if segment.merged > 1:
        attributes["merged"] = segment.merged
    return attributes


def wall_clock(now: float) -> WallClock:
    """What turns times on the scheduler's clock, which reads `now`, into nanoseconds since 1970. Spans that
    belong together are stamped by the same one.
    """
    offset = time.time_ns() - round(now * 1e9)
    return lambda at: offset + round(at * 1e9)
