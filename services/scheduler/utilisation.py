"""How busy each stage is while at least one batch is in flight; the rest of that time is a bubble.

Pure. A batch is known from its step to its result, so a stage's work on it counts when the result is there:
figures of a moment lag by the batches that are under way.
"""

from collections.abc import Sequence


class Utilisation:
    """active: seconds during which batches were in flight, up to the last call
    busy: by stage, seconds of computing, or of waiting for a copy that the step reads
    bubble: by stage, the seconds of `active` in which it had nothing to do; never falls
    """

    def __init__(self, stages: int) -> None:
        self.active = 0.0
        self.busy = [0.0] * stages
        self.bubble = [0.0] * stages
        self._since: float | None = None

    def observe(self, in_flight: int, now: float) -> None:
        """So many batches are in flight from `now` on."""
        if self._since is not None:
            self.active += now - self._since
        self._since = now if in_flight else None

    def worked(self, seconds: Sequence[float], waited: Sequence[float]) -> None:
        """A step is back; by stage, what it computed and waited."""
        for stage, spent in enumerate(map(sum, zip(seconds, waited, strict=False))):
            self.busy[stage] += spent
            self.bubble[stage] = max(self.bubble[stage], self.active - self.busy[stage])
