"""How many jobs there are in each state and queue, kept up to date so that nobody has to count them."""

from collections import Counter

from services.scheduler.job import Job
from shared.ids import JobId

Place = tuple[str, int]
"""State (waiting: never ran, running, preempted) and queue level."""


def state_of(job: Job) -> str:
    return "running" if job.in_flight else "preempted" if job.first_run is not None else "waiting"


class Tally:
    """Told of every job that may have changed its state or level; O(1) each."""

    def __init__(self) -> None:
        self._places: dict[JobId, Place] = {}
        self._counts: Counter[Place] = Counter()

    def note(self, job: Job) -> None:
        """A new job, or one that is in another state or queue now."""
        place = (state_of(job), job.level)
        before = self._places.get(job.job_id)
        if place == before:
            return
        if before is not None:
            self._leave(before)
        self._places[job.job_id] = place
        self._counts[place] += 1

    def forget(self, job: Job) -> None:
        """It ended."""
        self._leave(self._places.pop(job.job_id))

    def counts(self) -> dict[Place, int]:
        return dict(self._counts)

    def _leave(self, place: Place) -> None:
        self._counts[place] -= 1
        if not self._counts[place]:
            del self._counts[place]
