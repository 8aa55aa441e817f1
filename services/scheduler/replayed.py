"""Priority traces as in FastSwitch's evaluation (arXiv:2411.18424): priorities that change under the jobs.

Not a policy for serving: it forces context switches at a known frequency, to measure what they cost.
"""

import random

from services.scheduler.job import Job
from services.scheduler.ranked import RankedPolicy
from shared.config import SchedulerConfig
from shared.costmodel import CostModel
from shared.ids import JobId

LEVELS = 16
"""Distinct priorities; equal ones run in the order of arrival."""

MARKOV_STAY = 0.8
"""Chance that a job's priority stays in an update of the Markov trace; otherwise it moves by one."""


class RandomPriority(RankedPolicy):
    """Every 1 / trace_frequency plans each job draws a new priority; the same seed gives the same trace."""

    def __init__(self, config: SchedulerConfig, cost: CostModel) -> None:
        super().__init__(config, cost)
        self._every = max(1, round(1 / config.trace_frequency))
        self._random = random.Random(config.trace_seed)
        self._drawn: dict[JobId, int] = {}
        self._plans = 0

    def rank(self, job: Job) -> float:
        if job.job_id not in self._drawn:
            self._drawn[job.job_id] = self._random.randrange(LEVELS)
        return float(self._drawn[job.job_id])

    def redraw(self, before: int) -> int:
        return self._random.randrange(LEVELS)

    def remove(self, job: Job, completed: bool) -> None:
        super().remove(job, completed)
        del self._drawn[job.job_id]

    def promote(self, now: float) -> list[Job]:
        """Called before each plan: the trace's clock."""
        self._plans += 1
        if self._plans % self._every:
            return []
        for job_id, priority in self._drawn.items():
            self._drawn[job_id] = self.redraw(priority)
        self.sort_again()
        return []


class MarkovPriority(RandomPriority):
    """As RandomPriority, but a priority mostly stays and else moves to a neighbour: switches come in runs."""

    def redraw(self, before: int) -> int:
        if self._random.random() < MARKOV_STAY:
            return before
        return min(LEVELS - 1, max(0, before + self._random.choice((-1, 1))))
