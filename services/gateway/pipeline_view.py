"""What one pipeline answered when it was looked at."""

from typing import NamedTuple

from shared.messages import KVView, SchedulerView


class PipelineView(NamedTuple):
    """failure: why it cannot serve; empty if it can
    instance: of the scheduler that answered; None: it did not, and neither is there a `scheduler`
    """

    pipeline: int
    failure: str
    instance: str | None = None
    scheduler: SchedulerView | None = None
    kv: KVView | None = None

    def follows(self, before: "PipelineView") -> bool:
        """Whether counts of the two can be compared: the same scheduler gave them."""
        return self.instance is not None and self.instance == before.instance

    def seconds_since(self, before: "PipelineView") -> float:
        """0 if one of them has no scheduler."""
        if self.scheduler is None or before.scheduler is None:
            return 0.0
        return self.scheduler.at - before.scheduler.at
