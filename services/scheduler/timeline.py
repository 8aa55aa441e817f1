"""What one job is in, without a gap from its arrival to its end.

arrived ─> queued ─begins─> prefill, decode ─paused─> preempted ─moves─> swapping_out ─moved─> on_host
             ^                     ^   ^                  │                                      │
             │                     │   └──────begins──────┘ <────── moved ─ swapping_in <─moves──┘
             └─ dropped, wherever  └─────────── begins: its step waits for the copy ─┘
"""

from collections import deque
from collections.abc import Callable

import msgspec

from shared.messages import RUNNING, WAITING, Direction, JobState, LevelChange, Segment

MAX_SEGMENTS = 512
"""Of one job. When it has more, neighbours are merged: an answer that is preempted ten thousand times is seen
as well by the shares of its states in each stretch."""

MERGED_TOGETHER = 16
"""Segments of a stretch. More than there are states, so that merging always makes room."""

LEVEL_CHANGES = 128
"""Demotions that are kept, the latest; as many promotions."""

MOST_NAMED = 8
"""Requests that are named as having run in place of another."""

_SPLIT_BY_LEVEL = frozenset({JobState.QUEUED, JobState.PREEMPTED, JobState.ON_HOST})

Displacers = Callable[[float, float], list[str]]
"""Who ran between two times on the scheduler's clock."""


class Track:
    """Times are seconds on the scheduler's clock; those of segments count from the job's arrival.

    state: what the job is in; since: when that began
    started: it has been in an iteration
    lost: its KV was dropped, so that its next prefill is a recomputation
    came_back: when its last iteration ended, until it is known whether it is in the next one
    """

    __slots__ = (
        "_arrived", "_closed", "_displacers", "_iterations", "_level", "_merged", "_moving_in_step",
        "_reason", "came_back", "demotions", "first_token", "lost", "promotions", "since", "started", "state",
    )  # fmt: skip

    def __init__(self, arrived: float, now: float, level: int, displacers: Displacers) -> None:
        """arrived: when its request did, on this clock: it was at the gateway until now"""
        self._arrived = arrived
        self._displacers = displacers
        self._closed: list[Segment] = []
        self.state, self.since = JobState.GATEWAY, arrived
        self._level: int | None = None
        self._iterations = 0
        self._merged = 1
        self._reason: str | None = None
        self._moving_in_step: JobState | None = None
        self.started = False
        self.lost = False
        self.came_back: float | None = None
        self.first_token: float | None = None
        self.demotions: deque[LevelChange] = deque(maxlen=LEVEL_CHANGES)
        self.promotions: deque[LevelChange] = deque(maxlen=LEVEL_CHANGES)
        self._enter(JobState.QUEUED, now, level)

    @property
    def running(self) -> bool:
        return self.state in RUNNING or self._moving_in_step is not None

    # ------------------------------------------------------------ what happens to the job

    def begins(self, *, decode: bool, now: float, level: int) -> None:
        """It is in an iteration that begins. decode: that computes nothing but its last token"""
        prefill = JobState.RECOMPUTE if self.lost else JobState.PREFILL
        state = JobState.DECODE if decode else prefill
        self.started = True
        self.lost = self.lost and not decode
        if self.state is JobState.SWAPPING_IN:
            self._moving_in_step = state  # its step waits for the copy
            return
        at = now if self.came_back is None else self.came_back
        self.came_back = None
        if self.state is not state:
            self._enter(state, at, level)
        self._iterations += 1

    def returns(self, now: float) -> None:
        """Its iteration is over."""
        self._run_at_last(now)
        self.came_back = now

    def paused(self, level: int) -> None:
        """Others run, or nobody: its last iteration was the end of a run."""
        if self.came_back is not None:
            at, self.came_back = self.came_back, None
            self._enter(JobState.PREEMPTED, at, level)

    def moves(self, direction: Direction, now: float, level: int) -> None:
        """A copy of its KV begins."""
        self.paused(level)
        self._enter(JobState.SWAPPING_OUT if direction is Direction.OUT else JobState.SWAPPING_IN, now, level)

    def moved(self, now: float) -> None:
        """The copy is complete."""
        if self.state is JobState.SWAPPING_OUT:
            self._enter(JobState.ON_HOST, now, self._level)
        elif self._moving_in_step is not None:
            self._run_at_last(now)
        elif self.state is JobState.SWAPPING_IN:
            self._enter(JobState.PREEMPTED if self.started else JobState.QUEUED, now, self._level)

    def dropped(self, now: float, level: int, reason: str) -> None:
        """Its KV is given up."""
        self.paused(level)
        self._moving_in_step = None
        self.lost = self.started
        self._enter(JobState.QUEUED, now, level, reason)

    def demoted(self, now: float, level: int) -> None:
        self.demotions.append(LevelChange(now - self._arrived, level))
        self._level_changed(now, level)

    def promoted(self, now: float, level: int) -> None:
        self.promotions.append(LevelChange(now - self._arrived, level))
        self._level_changed(now, level)

    def _level_changed(self, now: float, level: int) -> None:
        if self.state in _SPLIT_BY_LEVEL:
            self._enter(self.state, now, level, self._reason)

    def drew(self, now: float) -> None:
        """A token of it is there."""
        if self.first_token is None:
            self.first_token = now - self._arrived

    # ------------------------------------------------------------ what can be told

    def segments(self, now: float) -> list[Segment]:
        """Up to now, contiguous, from 0."""
        if self.came_back is None or now <= self.came_back:
            return self._closed + self._open(now)
        run = self._closed + self._open(self.came_back)
        return [*run, Segment(JobState.PREEMPTED, run[-1].end, now - self._arrived, run[-1].level)]

    def forget(self) -> None:
        """Its segments were given away."""
        self._closed = []

    # ------------------------------------------------------------ segments

    def _run_at_last(self, now: float) -> None:
        """The copy that its step waited for is complete."""
        state, self._moving_in_step = self._moving_in_step, None
        if state is not None:
            self._enter(state, now, self._level)
            self._iterations += 1

    def _enter(self, state: JobState, at: float, level: int | None, reason: str | None = None) -> None:
        self._closed += self._open(at)
        self.state, self.since, self._level, self._reason = state, at, level, reason
        self._iterations, self._merged = 0, 1
        last = self._closed[-1] if self._closed else None
        if last is not None and last.state is state and state in RUNNING:  # what was between took no time
            self._closed.pop()
            self.since, self._level = self._arrived + last.start, last.level
            self._iterations, self._merged = last.iterations, last.merged
        if len(self._closed) >= MAX_SEGMENTS:
            self._closed = merged(self._closed)

    def _open(self, until: float) -> list[Segment]:
        """The present segment; none if it took no time."""
        if until <= self.since and not self._iterations:
            return []
        start = self._closed[-1].end if self._closed else 0.0  # to the last bit, so that no gap can be
        segment = Segment(
            self.state,
            start,
            max(start, until - self._arrived),
            self._level,
            self._iterations,
            self._displacers(self.since, until) if self.state in WAITING else [],
            self._reason,
            self._merged,
        )
        return [segment]


def merged(segments: list[Segment]) -> list[Segment]:
    """Fewer: of each stretch of `MERGED_TOGETHER` neighbours one segment per state, in the order in which
    they first occur. The time in each state stays what it was, in each stretch.
    """
    out: list[Segment] = []
    for first in range(0, len(segments), MERGED_TOGETHER):
        stretch = segments[first : first + MERGED_TOGETHER]
        at = stretch[0].start
        for state in dict.fromkeys(segment.state for segment in stretch):
            same = [segment for segment in stretch if segment.state is state]
            end = at + sum(segment.seconds for segment in same)
            names = dict.fromkeys(name for segment in same for name in segment.displaced_by)
            out.append(
                Segment(
                    state,
                    at,
                    end,
                    same[0].level,
                    sum(segment.iterations for segment in same),
                    list(names)[:MOST_NAMED],
                    next((segment.reason for segment in same if segment.reason), None),
                    sum(segment.merged for segment in same),
                )
            )
            at = end
        # Sums of rounded numbers: the next stretch must begin where this one ends.
        out[-1] = msgspec.structs.replace(out[-1], end=max(out[-1].start, stretch[-1].end))
    return out
