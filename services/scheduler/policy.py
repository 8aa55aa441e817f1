"""The interface of scheduling policies, and the table of those there are."""

from collections.abc import Callable, Iterator
from typing import Protocol

from services.scheduler.fcfs import FirstComeFirstServed
from services.scheduler.job import Job
from services.scheduler.skipjoin import SkipJoinMLFQ
from shared.config import SchedulerConfig
from shared.costmodel import CostModel


class Policy(Protocol):
    """Orders jobs. All times are seconds on the scheduler's clock; the caller says what time it is."""

    def add(self, job: Job, now: float) -> None:
        """A job arrived; its `waiting_since` counts from its arrival at the gateway."""
        ...

    def remove(self, job: Job) -> None:
        """A job ended, in whatever state."""
        ...

    def started(self, job: Job) -> None:
        """A job went into an iteration."""
        ...

    def ran(self, job: Job, seconds: float, now: float) -> None:
        """A job's iteration took `seconds`; it is not finished and waits again."""
        ...

    def ordered(self, now: float) -> Iterator[Job]:
        """All jobs in the order in which they should run, those in flight included."""
        ...

    def promotion_in(self, job: Job, now: float) -> float:
        """Seconds until the job is promoted if it goes on waiting (infinite without promotion)."""
        ...

    def quantum_left(self, job: Job) -> float:
        """Seconds that the job may still use before it gives way to those behind it."""
        ...

    def set_cost_model(self, cost: CostModel) -> None: ...


POLICIES: dict[str, Callable[[SchedulerConfig, CostModel], Policy]] = {
    "skip-join": SkipJoinMLFQ,
    "fcfs": FirstComeFirstServed,
}
