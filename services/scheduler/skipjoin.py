"""Skip-join multi-level feedback queue (FastServe, arXiv:2305.05920, section 4.1).

A job's first iteration (its prefill) is predictable, its length is not. So a job does not enter at the top
and fall: it joins the queue whose quantum covers its first iteration, and from there falls as it uses up
time. A job that waits longer than alpha goes to the top.
"""

import heapq
from collections.abc import Iterator

from services.scheduler.job import Job
from shared.config import SchedulerConfig
from shared.costmodel import CostModel
from shared.ids import JobId


class SkipJoinMLFQ:
    """Queues Q1..Qk with quanta q1 · ratio^(i-1), q1 the shortest iteration; level 0 is Q1.

    A queue is a dict in insertion order: first in, first out, a preempted job keeps its place, and leaving
    from the middle costs the same as from the front.
    """

    def __init__(self, config: SchedulerConfig, cost: CostModel) -> None:
        self._config = config
        self._queues: list[dict[JobId, Job]] = [{} for _ in range(config.levels)]
        self._waiting: list[tuple[float, int, Job]] = []  # heap; entries whose time is outdated are skipped
        self._entries = 0
        self.set_cost_model(cost)

    def set_cost_model(self, cost: CostModel) -> None:
        self._cost = cost
        ratio = self._config.quantum_ratio
        self._quanta = [cost.minimum_iteration * ratio**level for level in range(self._config.levels)]

    def add(self, job: Job, now: float) -> None:
        self._enqueue(job, self._level_for(self._next_iteration(job)))
        self._wait(job, job.waiting_since)

    def remove(self, job: Job) -> None:
        del self._queues[job.level][job.job_id]
        job.waiting_since = -1.0  # outdates its heap entry

    def started(self, job: Job) -> None:
        job.waiting_since = -1.0

    def ran(self, job: Job, seconds: float, now: float) -> None:
        job.used += seconds
        if job.used >= job.quantum:
            fallen = max(job.level + self._config.demotion_levels, self._level_for(self._next_iteration(job)))
            self._move(job, min(fallen, len(self._queues) - 1))
        self._wait(job, now)

    def ordered(self, now: float) -> Iterator[Job]:
        self._promote_starving(now)
        for queue in self._queues:
            yield from queue.values()

    def promotion_in(self, job: Job, now: float) -> float:
        return max(0.0, self._config.starvation_s - (now - job.waiting_since))

    def quantum_left(self, job: Job) -> float:
        return max(0.0, job.quantum - job.used)

    def _promote_starving(self, now: float) -> None:
        """To the tail of Q1, with a quantum that its next iteration does not use up at once."""
        while self._waiting and now - self._waiting[0][0] > self._config.starvation_s:
            since, _, job = heapq.heappop(self._waiting)
            if since != job.waiting_since:
                continue
            if job.level > 0:
                self._move(job, 0)
            job.used = 0.0
            job.quantum = max(self._quanta[0], self._next_iteration(job))
            self._wait(job, now)

    def _wait(self, job: Job, since: float) -> None:
        job.waiting_since = since
        self._entries += 1
        heapq.heappush(self._waiting, (since, self._entries, job))

    def _move(self, job: Job, level: int) -> None:
        del self._queues[job.level][job.job_id]
        self._enqueue(job, level)

    def _enqueue(self, job: Job, level: int) -> None:
        job.level, job.used, job.quantum = level, 0.0, self._quanta[level]
        self._queues[level][job.job_id] = job

    def _level_for(self, seconds: float) -> int:
        """The highest queue whose quantum covers `seconds`; the lowest if none does."""
        for level, quantum in enumerate(self._quanta):
            if quantum >= seconds:
                return level
        return len(self._quanta) - 1

    def _next_iteration(self, job: Job) -> float:
        if job.new_tokens == 1:
            return self._cost.decode(job.tokens)
        return self._cost.prefill(job.new_tokens)
