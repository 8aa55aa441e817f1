"""Why a job waited: what happened to it, when, and who ran instead. Bounded, whatever the load."""

from collections import Counter, OrderedDict, deque

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
        story.note(JobEvent(kind, now - story.arrived, level, other))

    def ended(self, job_id: JobId, now: float, level: int) -> None:
        self.note(job_id, JobEventKind.ENDED, now, level)
        self._ended[job_id] = self._open.pop(job_id)
        if len(self._ended) > FINISHED_KEPT:
            self._ended.popitem(last=False)

    def explain(self, job_id: JobId, now: float | None = None) -> Explanation:
        """What is known of a job; `found` is False for one that never was or was forgotten.

        now: the time in its present state counts up to then; None: up to its last event
        """
        story = self._open.get(job_id) or self._ended.get(job_id)
        if story is None:
            return Explanation(job_id, found=False)
        total = story.counts.total()
        return Explanation(
            job_id,
            True,
            list(story.events),
            total - len(story.events),
            story.state,
            story.events[-1].level,
            counts={kind.value: count for kind, count in story.counts.items()},
            seconds=story.seconds_until(None if now is None else now - story.arrived),
        )


_STATES = {
    JobEventKind.JOINED: "waiting",
    JobEventKind.STARTED: "running",
    JobEventKind.RESUMED: "running",
    JobEventKind.PREEMPTED: "preempted",
    JobEventKind.ENDED: "ended",
}
"""What a job is in after an event; the other kinds change nothing."""


class _Story:
    """state: what the job is in now"""

    __slots__ = ("_since", "_spent", "arrived", "counts", "events", "state")

    def __init__(self, arrived: float) -> None:
        self.arrived = arrived
        self.events: deque[JobEvent] = deque(maxlen=EVENTS_PER_JOB)
        self.counts: Counter[JobEventKind] = Counter()
        self.state = "waiting"  # at the gateway at first
        self._since = 0.0
        self._spent: dict[str, float] = {}

    def note(self, event: JobEvent) -> None:
        self.events.append(event)
        self.counts[event.kind] += 1
        state = _STATES.get(event.kind, self.state)
        if state != self.state:
            self._spent = self.seconds_until(event.at)
            self.state, self._since = state, event.at

    def seconds_until(self, at: float | None) -> dict[str, float]:
        """Time spent by state, up to then."""
        if self.state == "ended":
            return dict(self._spent)
        now = self.events[-1].at if at is None else at
        return {**self._spent, self.state: self._spent.get(self.state, 0.0) + now - self._since}
