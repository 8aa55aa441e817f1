"""Policies that run jobs in the order of one number each: fcfs, fixed-priority, srpt."""

from collections.abc import Iterator
from itertools import islice

from sortedcontainers import SortedKeyList

from services.scheduler.holders import Holders
from services.scheduler.job import Job
from shared.config import SchedulerConfig
from shared.costmodel import CostModel

Rank = tuple[float, ...]


class RankedPolicy:
    """Smallest rank first; equal ranks by arrival. No quanta and no promotion."""

    def __init__(self, config: SchedulerConfig, cost: CostModel) -> None:
        self._share = config.max_batch_size
        self.set_cost_model(cost)
        self._jobs: SortedKeyList = SortedKeyList(key=_by_rank)
        self._holders = Holders()
        self._arrivals = 0

    def rank(self, job: Job) -> float:
        raise NotImplementedError

    def set_cost_model(self, cost: CostModel) -> None:
        self._cost = cost
        # Nobody knows how long the jobs ahead will take; one decode iteration each keeps the order.
        self._per_job_ahead = cost.minimum_iteration / self._share

    def add(self, job: Job, now: float) -> None:
        self._arrivals += 1
        job.rank = (job.priority, self.rank(job), self._arrivals)
        self._jobs.add(job)

    def remove(self, job: Job, completed: bool) -> None:
        self._jobs.remove(job)
        self._holders.discard(job)

    def started(self, job: Job) -> None:
        self._holders.discard(job)

    def dropped(self, job: Job) -> None:
        self._holders.discard(job)

    def ran(self, job: Job, seconds: float, now: float) -> None:
        job.used += seconds
        priority, before, arrival = job.rank
        after = self.rank(job)
        if after != before:
            self._jobs.remove(job)
            job.rank = (priority, after, arrival)
            self._jobs.add(job)
        if job.kv_tokens:
            self._holders.add(job)

    def promote(self, now: float) -> list[Job]:
        return []

    def sort_again(self) -> None:
        """After ranks of many jobs have changed."""
        jobs, holders = list(self._jobs), list(self._holders.last_waiting())
        self._jobs.clear()
        self._holders = Holders()
        for job in jobs:
            priority, _, arrival = job.rank
            job.rank = (priority, self.rank(job), arrival)
        self._jobs.update(jobs)
        for job in reversed(holders):
            self._holders.add(job)

    def ordered(self) -> Iterator[Job]:
        return iter(self._jobs)

    def queues(self) -> Iterator[tuple[float, Iterator[Job]]]:
        yield 0.0, self.ordered()

    def upcoming(self, now: float) -> Iterator[tuple[Job, float]]:
        for ahead, job in enumerate(self._jobs):
            yield job, ahead * self._per_job_ahead

    def enst(self, job: Job, now: float) -> float:
        return self._jobs.bisect_left(job) * self._per_job_ahead

    def last_holders(self, count: int, now: float) -> list[tuple[Job, float]]:
        return [(job, self.enst(job, now)) for job in islice(self._holders.last_ranked(), count)]


def _by_rank(job: Job) -> Rank:
    return job.rank


class FirstComeFirstServed(RankedPolicy):
    """Run to completion: today's servers, and the baseline."""

    def rank(self, job: Job) -> float:
        return 0.0


class FixedPriority(RankedPolicy):
    """Shortest prompt first, the paper's comparison: what can be known without predicting anything."""

    def rank(self, job: Job) -> float:
        return float(len(job.prompt))


class ShortestRemainingTime(RankedPolicy):
    """The best there is when lengths are known, so only for the simulator and tests (`predicted_output`)."""

    def rank(self, job: Job) -> float:
        if job.predicted_output is None:
            raise ValueError(f"job {job.job_id}: srpt needs predicted_output, which no client sends")
        left = job.predicted_output - len(job.output)
        prefill = self._cost.prefill(job.new_tokens) if job.new_tokens > 1 else 0.0
        decodes = left - (1 if prefill else 0)
        return prefill + decodes * self._cost.decode(job.tokens)
