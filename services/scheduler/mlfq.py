"""Multi-level feedback queues: what skip-join, naive MLFQ and the Gittins index have in common.

A job joins a queue, falls when it has used up its quantum there, and goes to the first queue when it has
waited longer than alpha (FastServe, arXiv:2305.05920, section 4.1). Priority classes are strict, each with
queues of its own; alpha bounds waiting across them.
"""

from collections.abc import Iterator
from itertools import accumulate, chain

from services.scheduler.holders import Holders, largest
from services.scheduler.job import Job
from services.scheduler.presets import settings
from services.scheduler.queue import JobQueue
from services.scheduler.waits import Waits
from shared.config import SchedulerConfig
from shared.costmodel import CostModel
from shared.ids import JobId

SHORTEST_S = 1e-4
"""No iteration is shorter."""

_RECENT = 0.01
"""Weight of one job's iteration in the mean of recent ones."""


class MultiLevelQueue:
    """Queues Q1..Qk with quanta q1 · ratio^(i-1), q1 the shortest iteration; level 0 is Q1.

    The lowest queue is first come, first served: its jobs keep their places when they have used up a quantum.
    If they took turns there, those of equal length would all end late. So `levels` says how long a job may
    run and still be taken for a short one.

    alpha: the wait after which a job is promoted, seconds, as of the last plan
    """

    def __init__(self, config: SchedulerConfig, cost: CostModel) -> None:
        self._settings = settings(config)
        self._batch = config.max_batch_size
        self._share = self._batch if self._settings.enst_per_batch else 1
        self._classes: dict[int, list[JobQueue]] = {}
        self._queue_of: dict[JobId, JobQueue] = {}
        self._holders = Holders()
        self._enqueued = 0
        self._waits = Waits()  # of those that alpha may promote
        self._iteration_s = 0.0  # mean of recent ones
        self.alpha = self._settings.starvation_s
        self.set_cost_model(cost)

    # ------------------------------------------------------------ what the kinds of queue differ in

    def entry_level(self, job: Job) -> int:
        """Where an arriving job joins."""
        raise NotImplementedError

    def next_level(self, job: Job) -> int:
        """Where a job goes that has used up its quantum."""
        fallen = job.level + self._settings.demotion_levels
        if self._settings.demote_to_cover:
            fallen = max(fallen, self.level_for(self.next_iteration(job)))
        return min(fallen, len(self._quanta) - 1)

    # ------------------------------------------------------------ the policy interface

    def set_cost_model(self, cost: CostModel) -> None:
        self.cost = cost
        # A fit may give zero; with quanta of zero all jobs would meet in the lowest queue.
        first = self._settings.quantum_s or max(cost.minimum_iteration, SHORTEST_S)
        self._quanta = [first * self._settings.ratio**level for level in range(self._settings.levels)]

    def add(self, job: Job, now: float) -> None:
        self._enqueue(job, self._class(job.priority), self.entry_level(job))
        self._wait(job, job.waiting_since)

    def remove(self, job: Job, completed: bool) -> None:
        self.started(job)
        self._queue_of.pop(job.job_id).remove(job)
        if len(self._classes) > 1:
            self._forget_empty_classes()

    def started(self, job: Job) -> None:
        self._holders.discard(job)
        self._waits.discard(job)

    def dropped(self, job: Job) -> None:
        self._holders.discard(job)

    def ran(self, job: Job, seconds: float, now: float) -> None:
        job.used += seconds
        self._iteration_s += _RECENT * (seconds - self._iteration_s)
        if job.used >= job.quantum:
            queues, level = self._class(job.priority), self.next_level(job)
            if self._queue_of[job.job_id] is queues[level] is queues[-1]:
                self._renew(job)
            else:
                self._move(job, queues, level)
        else:
            self._queue_of[job.job_id].update(job, job.quantum - job.used)
        self._wait(job, now)

    def promote(self, now: float) -> list[Job]:
        """Jobs that have waited longer than alpha go to the first queue of all, with a quantum that their
        next iteration does not use up at once. Returns those that changed their queue.
        """
        moved: list[Job] = []
        self.alpha = alpha = self._stretched()
        while (job := self._waits.first()) is not None and now - job.waiting_since > alpha:
            self._waits.discard(job)
            first = self._first_class()
            used = job.used
            if self._queue_of[job.job_id] is not first[0]:
                self._move(job, first, 0)
                moved.append(job)
            further = (self._settings.promotion_iterations - 1) * max(self._iteration_s, self._quanta[0])
            job.quantum = max(self._quanta[0], self.next_iteration(job)) + further
            job.used = used if self._settings.promotion_keeps_used else 0.0
            self._queue_of[job.job_id].update(job, max(0.0, job.quantum - job.used))
            self._note_wait(job, now)
            if len(self._classes) > 1:
                self._waits.add(job)  # a class above may yet appear
            # Else nothing more can be done for it: promoting it again would change nothing until it has
            # run, and under overload every waiting job would cost that once per alpha.
        return moved

    def ordered(self) -> Iterator[Job]:
        return chain.from_iterable(self._all_queues())

    def queues(self) -> Iterator[tuple[float, Iterator[Job]]]:
        classes = [queues for _, queues in sorted(self._classes.items())]
        for level, quantum in enumerate(self._quanta):
            yield quantum, chain.from_iterable(queues[level] for queues in classes)

    def upcoming(self, now: float) -> Iterator[tuple[Job, float]]:
        ahead = 0.0
        for queue in self._all_queues():
            for job in queue:
                yield job, min(self._promotion_in(job, now), ahead / self._share)
                ahead += max(0.0, job.quantum - job.used)

    def enst(self, job: Job, now: float) -> float:
        return min(self._promotion_in(job, now), self._reached_in(job, self._seconds_above()))

    def last_holders(self, count: int, now: float) -> list[tuple[Job, float]]:
        above = self._seconds_above()
        return largest(
            count,
            self._holders.last_waiting(),
            self._holders.last_ranked(),
            lambda job: self._promotion_in(job, now),
            lambda job: self._reached_in(job, above),
        )

    # ------------------------------------------------------------ places and times

    def _stretched(self) -> float:
        """The wait after which a job is promoted, seconds.

        It stretches under overload. When all that wait are overdue, promotions alone fill the batches: the
        queues decide nothing any more, and going round swaps KV in and out for every token. So promoted jobs
        get their share of the places and no more.
        """
        share = self._settings.promotion_share
        if share is None:
            return self._settings.starvation_s
        turn = self._settings.promotion_iterations * self._iteration_s
        waiting = max(0, len(self._queue_of) - self._batch)
        return max(self._settings.starvation_s, waiting * turn / (self._batch * share))

    def level_for(self, seconds: float) -> int:
        """The highest queue whose quantum covers `seconds`; the lowest if none does."""
        for level, quantum in enumerate(self._quanta):
            if quantum >= seconds:
                return level
        return len(self._quanta) - 1

    def next_iteration(self, job: Job) -> float:
        """Predicted time of the job's next iteration, alone, seconds."""
        if job.new_tokens == 1:
            return self.cost.decode(job.tokens)
        return self.cost.prefill(job.new_tokens)

    def _promotion_in(self, job: Job, now: float) -> float:
        """Negative when it is overdue in the first queue: the longer, the sooner it runs."""
        return self.alpha - (now - job.waiting_since)

    def _reached_in(self, job: Job, above: dict[JobQueue, float]) -> float:
        """Quanta that the jobs ahead may still use, shared by those that run at once."""
        queue = self._queue_of[job.job_id]
        return (above[queue] + queue.ahead(job)) / self._share

    def _seconds_above(self) -> dict[JobQueue, float]:
        """By queue: what the jobs of all queues above it may still use."""
        queues = list(self._all_queues())
        return dict(zip(queues, accumulate((queue.total for queue in queues), initial=0.0), strict=False))

    def _all_queues(self) -> Iterator[JobQueue]:
        for priority in sorted(self._classes):
            yield from self._classes[priority]

    def _class(self, priority: int) -> list[JobQueue]:
        if priority not in self._classes:
            self._classes[priority] = [JobQueue((priority, level)) for level in range(self._settings.levels)]
        return self._classes[priority]

    def _forget_empty_classes(self) -> None:
        """Clients choose priorities: what they leave behind must not grow."""
        for priority, queues in list(self._classes.items()):
            if not any(map(len, queues)):
                del self._classes[priority]

    def _first_class(self) -> list[JobQueue]:
        return next(queues for _, queues in sorted(self._classes.items()) if any(map(len, queues)))

    def _wait(self, job: Job, since: float) -> None:
        self._note_wait(job, since)
        self._waits.add(job)

    def _note_wait(self, job: Job, since: float) -> None:
        self._holders.discard(job)
        job.waiting_since = since
        if job.kv_tokens:
            self._holders.add(job)

    def _renew(self, job: Job) -> None:
        """The quantum of its queue anew, in its place."""
        job.used = 0.0
        job.quantum = self._quanta[job.level]
        self._queue_of[job.job_id].update(job, job.quantum)

    def _move(self, job: Job, queues: list[JobQueue], level: int) -> None:
        self._holders.discard(job)
        self._queue_of.pop(job.job_id).remove(job)
        self._enqueue(job, queues, level)

    def _enqueue(self, job: Job, queues: list[JobQueue], level: int) -> None:
        job.level, job.used, job.quantum = level, 0.0, self._quanta[level]
        self._enqueued += 1
        job.rank = (*queues[level].place, self._enqueued)
        queues[level].append(job, job.quantum)
        self._queue_of[job.job_id] = queues[level]


class SkipJoinMLFQ(MultiLevelQueue):
    """A job's first iteration (its prefill) is predictable, its length is not: it joins the queue whose
    quantum covers that iteration, instead of entering at the top and falling.
    """

    def entry_level(self, job: Job) -> int:
        return self.level_for(self.next_iteration(job))


class NaiveMLFQ(MultiLevelQueue):
    """Every job enters at the top and falls level by level: the paper's comparison."""

    def entry_level(self, job: Job) -> int:
        return 0

    def next_level(self, job: Job) -> int:
        return min(job.level + 1, len(self._quanta) - 1)
