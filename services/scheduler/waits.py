"""Which job has waited longest."""

from collections import OrderedDict

from sortedcontainers import SortedKeyList

from services.scheduler.job import Job
from shared.ids import JobId


class Waits:
    """Waiting jobs by `waiting_since`, which must not change while they are here.

    Nearly every wait begins when it is noted, so that the line is in order without sorting. Only an arrival
    may have waited before (at the gateway): those stand aside, sorted.
    """

    def __init__(self) -> None:
        self._line: OrderedDict[JobId, Job] = OrderedDict()
        self._aside: SortedKeyList = SortedKeyList(key=lambda job: job.waiting_since)
        self._latest = float("-inf")

    def add(self, job: Job) -> None:
        """A job that is not here."""
        if job.waiting_since >= self._latest:
            self._latest = job.waiting_since
            self._line[job.job_id] = job
        else:
            self._aside.add(job)

    def discard(self, job: Job) -> None:
        if self._line.pop(job.job_id, None) is None:
            self._aside.discard(job)

    def first(self) -> Job | None:
        """The one that has waited longest; of several the one that came first."""
        in_line = next(iter(self._line.values()), None)
        if not self._aside:
            return in_line
        aside: Job = next(iter(self._aside))
        return aside if in_line is None or aside.waiting_since < in_line.waiting_since else in_line
