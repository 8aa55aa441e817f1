"""First come, first served, run to completion: today's servers, and the baseline."""

import math
from collections.abc import Iterator

from services.scheduler.job import Job
from shared.config import SchedulerConfig
from shared.costmodel import CostModel
from shared.ids import JobId


class FirstComeFirstServed:
    def __init__(self, config: SchedulerConfig, cost: CostModel) -> None:
        self._jobs: dict[JobId, Job] = {}
        self._cost = cost

    def add(self, job: Job, now: float) -> None:
        self._jobs[job.job_id] = job

    def remove(self, job: Job) -> None:
        del self._jobs[job.job_id]

    def started(self, job: Job) -> None:
        pass

    def ran(self, job: Job, seconds: float, now: float) -> None:
        job.used += seconds

    def ordered(self, now: float) -> Iterator[Job]:
        return iter(self._jobs.values())

    def promotion_in(self, job: Job, now: float) -> float:
        return math.inf

    def quantum_left(self, job: Job) -> float:
        """Until its last allowed token: it never gives way."""
        return (job.max_tokens - len(job.output)) * self._cost.decode(job.tokens)

    def set_cost_model(self, cost: CostModel) -> None:
        self._cost = cost
