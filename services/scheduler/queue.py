"""One first-in-first-out queue that also knows how much time the jobs ahead of another may still take."""

from collections.abc import Iterator

from services.scheduler.job import Job
from shared.ids import JobId

_SPARE = 64
"""Slots of departed jobs that are kept before the queue is packed anew."""


class JobQueue:
    """Jobs in the order of their arrival here; each with the seconds that it may still use.

    `append`, `remove`, `update` and `ahead` take O(log n): a Fenwick tree over slots, packed when most of
    them belong to jobs that have left. Updates come with every iteration and sums are asked for less often,
    so that the tree takes them in only then.

    place: of this queue among others
    """

    def __init__(self, place: tuple[int, ...] = ()) -> None:
        self.place = place
        self._jobs: dict[JobId, Job] = {}
        self._slots: dict[JobId, int] = {}
        self._seconds: list[float] = [0.0]  # by slot, from 1
        self._tree: list[float] = [0.0]
        self._total = 0.0
        self._updates: dict[int, float] = {}  # seconds by slot, not in the tree yet

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs.values())

    def append(self, job: Job, seconds: float) -> None:
        slot = len(self._tree)
        # A Fenwick node holds the sum of its slot and of the nodes below it.
        below, step = seconds, 1
        while step < slot & -slot:
            below += self._tree[slot - step]
            step <<= 1
        self._tree.append(below)
        self._seconds.append(seconds)
        self._jobs[job.job_id] = job
        self._slots[job.job_id] = slot
        self._total += seconds

    def update(self, job: Job, seconds: float) -> None:
        """The job stays where it is and may use `seconds` from now on."""
        self._updates[self._slots[job.job_id]] = seconds

    def remove(self, job: Job) -> None:
        del self._jobs[job.job_id]
        self._updates[self._slots.pop(job.job_id)] = 0.0
        if len(self._tree) > 2 * len(self._jobs) + _SPARE:
            self._pack()

    @property
    def total(self) -> float:
        """Seconds that all jobs here may still use."""
        self._take_updates()
        return self._total

    def ahead(self, job: Job) -> float:
        """Seconds that all jobs before this one may still use."""
        if self._updates:
            self._take_updates()
        slot, seconds = self._slots[job.job_id] - 1, 0.0
        while slot > 0:
            seconds += self._tree[slot]
            slot &= slot - 1
        return seconds

    def _take_updates(self) -> None:
        for slot, seconds in self._updates.items():
            change = seconds - self._seconds[slot]
            self._seconds[slot] = seconds
            self._total += change
            while slot < len(self._tree):
                self._tree[slot] += change
                slot += slot & -slot
        self._updates.clear()

    def _pack(self) -> None:
        """Also ends the drift of sums that were added to and taken from."""
        kept: list[tuple[Job, float]] = []
        for job in self._jobs.values():
            slot = self._slots[job.job_id]
            kept.append((job, self._updates.get(slot, self._seconds[slot])))
        self.__init__(self.place)
        for job, seconds in kept:
            self.append(job, seconds)
