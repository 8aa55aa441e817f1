"""Which waiting jobs hold KV, and which of them run last: the KV-cache manager takes those for victims.

ENST(i) = min(time until promotion, time until reached). Neither half alone orders the jobs, and both change
with every iteration, but each half is sorted all the time: by when the wait began, and by place in the
queues. So the largest few are found from the two ends, without looking at the rest (Fagin's threshold
algorithm).
"""

import heapq
from collections.abc import Callable, Iterable, Iterator

from sortedcontainers import SortedKeyList

from services.scheduler.job import Job
from shared.ids import JobId


class Holders:
    """Jobs that wait and hold KV, in the order in which their wait began and in that of their `rank`.

    Most jobs that come back from an iteration go straight into the next one: they are sorted in among the
    ranks only when somebody asks.
    """

    def __init__(self) -> None:
        self._by_wait: dict[JobId, Job] = {}
        self._by_rank: SortedKeyList = SortedKeyList(key=lambda job: job.rank)
        self._unsorted: dict[JobId, Job] = {}

    def add(self, job: Job) -> None:
        """Its wait begins now: no earlier than that of any job here. Its rank stays while it is here."""
        self._by_wait[job.job_id] = self._unsorted[job.job_id] = job

    def discard(self, job: Job) -> None:
        waited = self._by_wait.pop(job.job_id, None) is not None
        if waited and self._unsorted.pop(job.job_id, None) is None:
            self._by_rank.remove(job)

    def last_waiting(self) -> Iterator[Job]:
        """Latest wait first: descending time until promotion."""
        return reversed(self._by_wait.values())

    def last_ranked(self) -> Iterator[Job]:
        """Largest rank first."""
        self._by_rank.update(self._unsorted.values())
        self._unsorted.clear()
        return reversed(self._by_rank)


def largest(
    count: int, by_promotion: Iterable[Job], by_place: Iterable[Job],
    promotion_in: Callable[[Job], float], reached_in: Callable[[Job], float],
) -> list[tuple[Job, float]]:  # fmt: skip
    """The `count` jobs with the largest min(promotion_in, reached_in), and that value, descending.

    by_promotion, by_place: the same jobs, by descending `promotion_in` and by descending `reached_in`
    """
    seen: set[JobId] = set()
    best: list[tuple[float, int, Job]] = []  # a heap: the smallest of the largest so far is on top
    for promoted, placed in zip(by_promotion, by_place, strict=False):
        for job in (promoted, placed):
            if job.job_id in seen:
                continue
            seen.add(job.job_id)
            entry = (min(promotion_in(job), reached_in(job)), len(seen), job)
            if len(best) < count:
                heapq.heappush(best, entry)
            elif entry > best[0]:
                heapq.heapreplace(best, entry)
        # No job further down either list can have more than the smaller of these.
        if len(best) == count and (best[0][0] >= promotion_in(promoted) or best[0][0] >= reached_in(placed)):
            break
    return [(job, enst) for enst, _, job in sorted(best, key=lambda entry: entry[0], reverse=True)]
