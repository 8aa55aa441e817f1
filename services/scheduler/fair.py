"""Fairness between tenants by virtual token counters (VTC, arXiv:2401.00588): first come, first served
inside a tenant, and the tenant that has been served least goes next.
"""

import heapq
from collections.abc import Iterable, Iterator

from services.scheduler.holders import Holders
from services.scheduler.job import Job
from shared.config import SchedulerConfig
from shared.costmodel import CostModel
from shared.ids import JobId

OUTPUT_WEIGHT = 2.0
"""An output token counts as two input tokens, as in the paper."""


class Fair:
    def __init__(self, config: SchedulerConfig, cost: CostModel) -> None:
        self._share = config.max_batch_size
        self.set_cost_model(cost)
        self._tenants: dict[str, dict[JobId, Job]] = {}
        self._served: dict[str, float] = {}
        self._holders = Holders()
        self._arrivals = 0

    def set_cost_model(self, cost: CostModel) -> None:
        self._per_job_ahead = cost.minimum_iteration / self._share

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

    def queues(self) -> Iterator[tuple[float, Iterator[Job]]]:
        yield 0.0, self.ordered()

    def upcoming(self, now: float) -> Iterator[tuple[Job, float]]:
        return self._with_enst(self.ordered())

    def enst(self, job: Job, now: float) -> float:
        """By how much its tenant has had more than the least served one, in output tokens."""
        return next(self._with_enst([job]))[1]

    def _with_enst(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, float]]:
        least = min((self._served[name] for name in self._tenants), default=0.0)
        for job in jobs:
            ahead = (self._served[job.tenant] - least) / OUTPUT_WEIGHT
            yield job, (ahead + job.rank[0] * 1e-9) * self._per_job_ahead

    def last_holders(self, count: int, now: float) -> list[tuple[Job, float]]:
        last = self._with_enst(self._holders.last_ranked())
        return sorted(last, key=lambda entry: entry[1], reverse=True)[:count]

    @staticmethod
    def _charge(job: Job) -> float:
        return OUTPUT_WEIGHT if job.new_tokens == 1 else job.new_tokens + OUTPUT_WEIGHT
