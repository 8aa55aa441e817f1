"""Fairness between tenants by virtual token counters (VTC, arXiv:2401.00588): first come, first served
inside a tenant, and the tenant that has been served least goes next.
"""

import heapq
from collections.abc import Iterator

from sortedcontainers import SortedKeyList

from services.scheduler.job import Job
from shared.config import SchedulerConfig
from shared.costmodel import CostModel
from shared.ids import JobId

OUTPUT_WEIGHT = 2.0
"""An output token counts as two input tokens, as in the paper."""


class Fair:
    def __init__(self, config: SchedulerConfig, cost: CostModel) -> None:
        self._share = config.max_batch_size
        self._cost = cost
        self._tenants: dict[str, dict[JobId, Job]] = {}
        self._served: dict[str, float] = {}
        self._holders: SortedKeyList = SortedKeyList(key=lambda job: job.rank)
        self._arrivals = 0

    def set_cost_model(self, cost: CostModel) -> None:
        self._cost = cost

    def add(self, job: Job, now: float) -> None:
        self._arrivals += 1
        job.rank = (self._arrivals,)
        jobs = self._tenants.get(job.tenant)
        if jobs is None:
            # Time away earns no credit: who comes back starts level with the least served of those here.
            least = min((self._served[name] for name in self._tenants), default=0.0)
            self._served[job.tenant] = max(self._served.get(job.tenant, 0.0), least)
            jobs = self._tenants[job.tenant] = {}
        jobs[job.job_id] = job

    def remove(self, job: Job, completed: bool) -> None:
        self._holders.discard(job)
        jobs = self._tenants[job.tenant]
        del jobs[job.job_id]
        if not jobs:
            del self._tenants[job.tenant]

    def started(self, job: Job) -> None:
        self._holders.discard(job)
        # Charged when it starts, so that a prefill under way counts against the next choice.
        self._served[job.tenant] += self._charge(job)

    def dropped(self, job: Job) -> None:
        self._holders.discard(job)

    def ran(self, job: Job, seconds: float, now: float) -> None:
        job.used += seconds
        if job.kv_tokens:
            self._holders.add(job)

    def promote(self, now: float) -> list[Job]:
        return []

    def ordered(self) -> Iterator[Job]:
        """Tenant by tenant, least served first, as if each job taken were served now."""
        turns = [(self._served[name], name, iter(jobs.values())) for name, jobs in self._tenants.items()]
        heapq.heapify(turns)
        while turns:
            served, name, jobs = turns[0]
            job = next(jobs, None)
            if job is None:
                heapq.heappop(turns)
                continue
            heapq.heapreplace(turns, (served + self._charge(job), name, jobs))
            yield job

    def upcoming(self, now: float) -> Iterator[tuple[Job, float]]:
        return ((job, self.enst(job, now)) for job in self.ordered())

    def enst(self, job: Job, now: float) -> float:
        """By how much its tenant has had more than the least served one, in output tokens."""
        ahead = self._served[job.tenant] - min(self._served[name] for name in self._tenants)
        return (ahead / OUTPUT_WEIGHT + job.rank[0] * 1e-9) * self._cost.minimum_iteration / self._share

    def last_holders(self, count: int, now: float) -> list[tuple[Job, float]]:
        last = [(job, self.enst(job, now)) for job in self._holders]
        return sorted(last, key=lambda entry: entry[1], reverse=True)[:count]

    @staticmethod
    def _charge(job: Job) -> float:
        return OUTPUT_WEIGHT if job.new_tokens == 1 else job.new_tokens + OUTPUT_WEIGHT
