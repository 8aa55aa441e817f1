"""What happened to jobs: the story of each (why it waited, who ran instead), and what it was in when.

Bounded, whatever the load. The segments of a job are given away when it ends; its story stays for a while.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable

from services.scheduler.iterations import Iterations
from services.scheduler.job import Job
from services.scheduler.timeline import MOST_NAMED, Track
from shared.ids import JobId, StepId, TransferId
from shared.messages import (
    RUNNING,
    Directive,
    Explanation,
    FinishReason,
    IterationSample,
    JobEvent,
    JobEventKind,
    Occupancy,
    Segment,
    Timeline,
)

EVENTS_PER_JOB = 64
"""The latest; an answer that is preempted a thousand times tells no more by all of them."""

FINISHED_KEPT = 1000
"""Ended jobs that can still be explained."""


class History:
    """Times are seconds on the scheduler's clock; in what it tells they count from the job's arrival."""

    def __init__(self, samples: int, depth: int) -> None:
        """samples: iterations that are kept; depth: batches in flight at most"""
        self._open: dict[JobId, _Story] = {}
        self._ended: OrderedDict[JobId, _Story] = OrderedDict()
        self._iterations = Iterations(samples, depth)
        self._moving: dict[TransferId, _Story] = {}

    # ------------------------------------------------------------ what happens

    def arrived(self, job: Job, now: float) -> None:
        """It arrived at `job.arrived`, on the scheduler's clock; its `joined` event is stamped now."""
        name = _name_of(job)

        def displacers(since: float, until: float) -> list[str]:
            return self._iterations.ran(since, until, name, MOST_NAMED)

        story = _Story(job, Track(job.arrived, now, job.level, displacers))
        story.track.lost = bool(job.output)  # another scheduler had it before
        self._open[job.job_id] = story
        story.note(JobEventKind.JOINED, now, job.level)

    def begins(self, job: Job, now: float) -> None:
        """It is in the iteration that begins now."""
        story = self._open[job.job_id]
        if not story.track.started:
            story.note(JobEventKind.STARTED, now, job.level)
        elif story.preempted:
            story.note(JobEventKind.RESUMED, now, job.level)
        story.preempted = False
        story.track.begins(decode=bool(job.output) and job.new_tokens == 1, now=now, level=job.level)

    def iteration_begins(
        self,
        step_id: StepId,
        batch: list[Job],
        now: float,
        *,
        waiting: int,
        occupancy: Occupancy,
        directives: Iterable[Directive],
    ) -> None:
        """waiting: jobs that are in none"""
        self._iterations.begun(
            step_id,
            now,
            [_name_of(job) for job in batch],
            tokens=sum(job.computing for job in batch),
            waiting=waiting,
            occupancy=occupancy,
            directives=directives,
        )

    def iteration_ends(self, step_id: StepId, now: float) -> float:
        """When it began."""
        return self._iterations.ended(step_id, now)

    def returns(self, job: Job, now: float) -> None:
        """Its iteration is over."""
        self._open[job.job_id].track.returns(now)

    def drew(self, job: Job, now: float) -> None:
        """It has a new token."""
        self._open[job.job_id].track.drew(now)

    def preempted(self, job: Job, now: float, instead: JobId | None) -> None:
        """It could have gone on; `instead` runs."""
        story = self._open[job.job_id]
        story.preempted = True
        story.note(JobEventKind.PREEMPTED, now, job.level, instead)
        story.track.paused(job.level)

    def blocked(self, job: Job) -> None:
        """It could have gone on, but nothing can run now."""
        self._open[job.job_id].track.paused(job.level)

    def level_changed(self, job: Job, before: int, now: float) -> None:
        """It came from the queue `before`."""
        if job.level < before:
            self.promoted(job, now)
            return
        story = self._open[job.job_id]
        story.note(JobEventKind.DEMOTED, now, job.level)
        story.track.demoted(now, job.level)

    def promoted(self, job: Job, now: float) -> None:
        """It has waited too long, or is now expected to end soon."""
        story = self._open[job.job_id]
        story.note(JobEventKind.PROMOTED, now, job.level)
        story.track.promoted(now, job.level)

    def moves(self, directive: Directive, job: Job, now: float) -> None:
        """A copy of its KV begins."""
        story = self._open[job.job_id]
        story.transfer = directive.transfer_id
        self._moving[directive.transfer_id] = story
        story.track.moves(directive.direction, now, job.level)

    def moved(self, transfer_ids: Iterable[TransferId], now: float) -> None:
        """These copies are complete. One that is known of late, when the next has begun, changes nothing."""
        for transfer_id in transfer_ids:
            story = self._moving.pop(transfer_id, None)
            if story is not None and story.transfer == transfer_id and self._open.get(story.job_id) is story:
                story.track.moved(now)

    def dropped(self, job: Job, now: float, reason: str) -> None:
        """Its KV is given up."""
        story = self._open[job.job_id]
        story.note(JobEventKind.DROPPED, now, job.level)
        story.track.dropped(now, job.level, reason)

    def failed(self, job: Job, now: float) -> None:
        """Its step failed, and with it what it holds."""
        self._open[job.job_id].track.dropped(now, job.level, "its step failed")

    def lost(self, jobs: Iterable[Job], now: float) -> None:
        """A new epoch begins: all of these lose their KV, nothing is in flight."""
        self._moving.clear()
        self._iterations.lost(now)
        for job in jobs:
            track = self._open[job.job_id].track
            if track.started or track.running:
                track.dropped(now, job.level, "all KV was lost: a new epoch began")

    def ended(self, job: Job, reason: FinishReason, now: float) -> Timeline:
        """Its whole timeline, which is kept by whoever is given it."""
        timeline = self.timeline(job, now, reason)
        story = self._open.pop(job.job_id)
        story.end(timeline.segments, now, job.level)
        self._ended[job.job_id] = story
        if len(self._ended) > FINISHED_KEPT:
            self._ended.popitem(last=False)
        return timeline

    # ------------------------------------------------------------ what is told

    def timeline(self, job: Job, now: float, reason: FinishReason | None = None) -> Timeline:
        """Of an unfinished job, or of one that ends now."""
        track = self._open[job.job_id].track
        return Timeline(
            job.job_id,
            job.request_id,
            job.choice,
            job.trace,
            now - job.arrived,
            track.segments(now),
            track.first_token,
            reason.value if reason is not None else None,
            len(job.prompt),
            len(job.output),
            list(track.demotions),
            list(track.promotions),
        )

    def samples(self, now: float, seconds: float) -> list[IterationSample]:
        """Of the iterations that began in the last so many seconds."""
        return self._iterations.samples(now, seconds)

    def explain(self, job_id: JobId, now: float | None = None) -> Explanation:
        """What is known of a job; `found` is False for one that never was or was forgotten.

        now: the time in its present state counts up to then; None: up to its last event
        """
        story = self._open.get(job_id) or self._ended.get(job_id)
        if story is None:
            return Explanation(job_id, found=False)
        total = story.counts.total()
        at = story.arrived + story.events[-1].at if now is None else now
        return Explanation(
            job_id,
            True,
            list(story.events),
            total - len(story.events),
            story.state,
            story.events[-1].level,
            counts={kind.value: count for kind, count in story.counts.items()},
            seconds=story.seconds_until(at),
        )


def _name_of(job: Job) -> str:
    return job.request_id or f"{job.job_id:016x}"


class _Story:
    """preempted: others ran in its place after its last iteration; transfer: its latest"""

    __slots__ = ("_spent", "arrived", "counts", "events", "job_id", "preempted", "track", "transfer")

    def __init__(self, job: Job, track: Track) -> None:
        self.job_id = job.job_id
        self.arrived = job.arrived
        self.track = track
        self.events: deque[JobEvent] = deque(maxlen=EVENTS_PER_JOB)
        self.counts: Counter[JobEventKind] = Counter()
        self.preempted = False
        self.transfer: TransferId | None = None
        self._spent: dict[str, float] | None = None  # once it has ended

    @property
    def state(self) -> str:
        if self._spent is not None:
            return "ended"
        if not self.track.started:
            return "waiting"
        return "running" if self.track.running else "preempted"

    def note(self, kind: JobEventKind, now: float, level: int, other: JobId | None = None) -> None:
        self.events.append(JobEvent(kind, now - self.arrived, level, other))
        self.counts[kind] += 1

    def end(self, segments: list[Segment], now: float, level: int) -> None:
        self.note(JobEventKind.ENDED, now, level)
        self._spent = _by_state(segments)
        self.track.forget()

    def seconds_until(self, at: float) -> dict[str, float]:
        """Time spent by state, up to then."""
        return _by_state(self.track.segments(at)) if self._spent is None else dict(self._spent)


def _by_state(segments: list[Segment]) -> dict[str, float]:
    """Seconds before the first iteration, in iterations, and out of them afterwards."""
    seconds: dict[str, float] = {}
    started = False
    for segment in segments:
        running = segment.state in RUNNING
        started = started or running
        state = "running" if running else "preempted" if started else "waiting"
        seconds[state] = seconds.get(state, 0.0) + segment.seconds
    return seconds
