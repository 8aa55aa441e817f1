"""The interface of scheduling policies, and the table of those there are."""

from collections.abc import Callable, Iterator
from typing import Protocol

from services.scheduler.fair import Fair
from services.scheduler.gittins import Gittins
from services.scheduler.job import Job
from services.scheduler.mlfq import NaiveMLFQ, SkipJoinMLFQ
from services.scheduler.ranked import FirstComeFirstServed, FixedPriority, ShortestRemainingTime
from services.scheduler.replayed import MarkovPriority, RandomPriority
from shared.config import SchedulerConfig
from shared.costmodel import CostModel


class Policy(Protocol):
    """Orders jobs. All times are seconds on the scheduler's clock; the caller says what time it is.

    No call may cost more than O(log jobs), `ordered` that per job taken from it.
    """

    def add(self, job: Job, now: float) -> None:
        """A job arrived; its `waiting_since` counts from its arrival at the gateway."""
        ...

    def remove(self, job: Job, completed: bool) -> None:
        """A job ended, in whatever state; `completed`: by its own rules, so its length can be learned."""
        ...

    def started(self, job: Job) -> None:
        """A job went into an iteration."""
        ...

    def ran(self, job: Job, seconds: float, now: float) -> None:
        """A job's iteration took `seconds`; it is not finished and waits again."""
        ...

    def dropped(self, job: Job) -> None:
        """A waiting job lost its KV."""
        ...

    def promote(self, now: float) -> list[Job]:
        """Move jobs that have waited too long, and name them; called before each plan."""
        ...

    def ordered(self) -> Iterator[Job]:
        """All jobs in the order in which they should run, those in flight included."""
        ...

    def queues(self) -> Iterator[tuple[float, Iterator[Job]]]:
        """By level, from Q1: the quantum, seconds (0: there is none), and the jobs in the order in which they
        should run, of a lower priority class behind those of a higher one.
        """
        ...

    def upcoming(self, now: float) -> Iterator[tuple[Job, float]]:
        """As `ordered`, each with its ENST."""
        ...

    def enst(self, job: Job, now: float) -> float:
        """Estimated next scheduled time of a waiting job, seconds from now (FastServe, section 4.2)."""
        ...

    def last_holders(self, count: int, now: float) -> list[tuple[Job, float]]:
        """Of the waiting jobs that hold KV, those with the largest ENST, and that, descending."""
        ...

    def set_cost_model(self, cost: CostModel) -> None: ...


POLICIES: dict[str, Callable[[SchedulerConfig, CostModel], Policy]] = {
    "skip-join": SkipJoinMLFQ,
    "mlfq": NaiveMLFQ,
    "fcfs": FirstComeFirstServed,
    "fixed-priority": FixedPriority,
    "srpt": ShortestRemainingTime,
    "fair": Fair,
    "gittins": Gittins,
    "random-priority": RandomPriority,
    "markov-priority": MarkovPriority,
}
