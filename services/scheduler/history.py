"""Why a job waited: what happened to it, when, and who ran instead. Bounded, whatever the load."""

from collections import OrderedDict, deque

from shared.ids import JobId
from shared.messages import Explanation, JobEvent, JobEventKind

EVENTS_PER_JOB = 64
"""The latest; an answer that is preempted a thousand times tells no more by all of them."""

FINISHED_KEPT = 1000
"""Ended jobs that can still be explained."""


class History:
    """Times are seconds since the job's arrival at the gateway."""

    def __init__(self) -> None:
        self._open: dict[JobId, _Story] = {}
        self._ended: OrderedDict[JobId, _Story] = OrderedDict()

    def arrived(self, job_id: JobId, at: float, now: float, level: int) -> None:
        """at: when it arrived, on the scheduler's clock; its `joined` event is stamped now."""
        self._open[job_id] = _Story(at)
        self.note(job_id, JobEventKind.JOINED, now, level)

    def note(
        self, job_id: JobId, kind: JobEventKind, now: float, level: int, other: JobId | None = None
    ) -> None:
        story = self._open[job_id]
        story.total += 1
        story.events.append(JobEvent(kind, now - story.arrived, level, other))

    def ended(self, job_id: JobId, now: float, level: int) -> None:
        self.note(job_id, JobEventKind.ENDED, now, level)
        self._ended[job_id] = self._open.pop(job_id)
        if len(self._ended) > FINISHED_KEPT:
            self._ended.popitem(last=False)

    def explain(self, job_id: JobId) -> Explanation:
        """What is known of a job; `found` is False for one that never was or was forgotten."""
        story = self._open.get(job_id) or self._ended.get(job_id)
        if story is None:
            return Explanation(job_id, found=False)
        return Explanation(job_id, True, list(story.events), story.total - len(story.events))


class _Story:
    __slots__ = ("arrived", "events", "total")

    def __init__(self, arrived: float) -> None:
        self.arrived = arrived
        self.events: deque[JobEvent] = deque(maxlen=EVENTS_PER_JOB)
        self.total = 0
