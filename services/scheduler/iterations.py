"""The last iterations: what they were like, and who was in them. Bounded, whatever the load."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

import msgspec

from shared.ids import StepId
from shared.messages import Direction, Directive, IterationSample, Occupancy

MOST_SAMPLES = 2000
"""In one message; more are merged with their neighbours."""

_LOOKED_AT = 64
"""Iterations, to find who ran in place of a job."""


class _Iteration:
    """names: of the requests in it"""

    __slots__ = ("began", "ended", "names", "sample")

    def __init__(self, began: float, names: Sequence[str], sample: IterationSample) -> None:
        self.began = began
        self.ended: float | None = None
        self.names = names
        self.sample = sample


class Iterations:
    """Times are seconds on the scheduler's clock. kept: of the last so many something is known"""

    def __init__(self, kept: int, depth: int) -> None:
        """depth: batches in flight at most"""
        self._kept = kept
        self._depth = depth + 1
        self._log: list[_Iteration] = []
        self._times: list[float] = []  # when those began
        self._open: dict[StepId, _Iteration] = {}

    def begun(
        self,
        step_id: StepId,
        now: float,
        names: Sequence[str],
        *,
        tokens: int,
        waiting: int,
        occupancy: Occupancy,
        directives: Iterable[Directive],
    ) -> None:
        """names: of the requests of its batch; none if it only begins copies"""
        swapped = {Direction.OUT: 0, Direction.IN: 0}
        for directive in directives:
            swapped[directive.direction] += directive.blocks
        sample = IterationSample(
            0.0,
            len(names),
            tokens,
            waiting,
            occupancy.device_used,
            occupancy.device_total,
            occupancy.host_used,
            occupancy.host_total,
            swapped[Direction.OUT],
            swapped[Direction.IN],
        )
        iteration = _Iteration(now, names, sample)
        if names:
            self._open[step_id] = iteration
        self._log.append(iteration)
        self._times.append(now)
        if len(self._log) > 2 * self._kept:
            del self._log[: -self._kept]
            del self._times[: -self._kept]

    def ended(self, step_id: StepId, now: float) -> float:
        """When it began."""
        iteration = self._open.pop(step_id)
        iteration.ended = now
        return iteration.began

    def lost(self, now: float) -> None:
        """None that is open will have a result."""
        for step_id in list(self._open):
            self.ended(step_id, now)

    def ran(self, since: float, until: float, but: str, most: int) -> list[str]:
        """Names of the requests in iterations between two times, or still under way at the first; in their
        order, the first `most`, without `but`.
        """
        first = bisect_left(self._times, since)
        names: dict[str, None] = {}
        before = self._log[max(0, first - self._depth) : first]
        under_way = [each for each in before if each.ended is None or each.ended > since]
        for iteration in under_way + self._log[first : first + _LOOKED_AT]:
            if iteration.began >= until or len(names) >= most:
                break
            for name in iteration.names:
                names[name] = None
            names.pop(but, None)
        return list(names)[:most]

    def samples(self, now: float, seconds: float) -> list[IterationSample]:
        """Of those that began in the last so many seconds."""
        first = bisect_left(self._times, now - seconds)
        first = max(first, len(self._log) - self._kept)
        recent = [
            msgspec.structs.replace(
                each.sample,
                ago=now - each.began,
                seconds=0.0 if each.ended is None else each.ended - each.began,
            )
            for each in self._log[first:]
        ]
        together = -(-len(recent) // MOST_SAMPLES)
        if together <= 1:
            return recent
        return [thinned(recent[start : start + together]) for start in range(0, len(recent), together)]


def thinned(samples: Sequence[IterationSample]) -> IterationSample:
    """One for all of these: peaks stay visible, and the swapped blocks add up to what they were."""
    return IterationSample(
        samples[0].ago,
        max(sample.batch for sample in samples),
        max(sample.tokens for sample in samples),
        max(sample.waiting for sample in samples),
        max(sample.device_used for sample in samples),
        samples[0].device_total,
        max(sample.host_used for sample in samples),
        samples[0].host_total,
        sum(sample.swap_out for sample in samples),
        sum(sample.swap_in for sample in samples),
        max(sample.seconds for sample in samples),
        sum(sample.iterations for sample in samples),
    )
