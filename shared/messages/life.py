"""Who is there, what it can do, and how far a start is."""

from shared.costmodel import CostModel
from shared.messages.base import Message, Part

HELLO_STALE_S = 5.0
"""Services say Hello every second; one that has not for this long counts as gone."""


class Limits(Part, frozen=True):
    """What a single request may ask for. capacity: tokens that one job's KV may ever hold."""

    max_model_len: int
    capacity: int

    @property
    def max_tokens_total(self) -> int:
        return min(self.max_model_len, self.capacity)


class Outstanding(Part, frozen=True):
    """Unfinished jobs of one pipeline, as its scheduler sees them.

    prefill: tokens of those whose prompt is still to be computed
    context: tokens of all
    output: tokens that they may still draw, at most
    """

    jobs: int = 0
    prefill: int = 0
    context: int = 0
    output: int = 0


class Hello(Message, frozen=True):
    """Published every second by every service; a new `instance` means that the service was restarted.

    service: "scheduler", "kvcache", "profiler", "gateway" or "stage0", "stage1", ...
    ready: it can do its work
    limits: set by the scheduler once it is ready
    pipeline: whose scheduler it is; cost: what iterations cost, once that is known
    outstanding: unfinished jobs by who receives their tokens
    """

    service: str
    instance: str
    ready: bool
    detail: str = ""
    limits: Limits | None = None
    pipeline: int = 0
    cost: CostModel | None = None
    outstanding: dict[str, Outstanding] = {}


class Drain(Message, frozen=True):
    """The application is about to stop: gateways refuse what is new, let the open answers end, and then say
    Hello with the detail DRAINED.
    """


DRAINED = "drained"
LEAVING = "the scheduler is shutting down"
"""Detail of a scheduler's last Hello: its jobs are better off in other pipelines."""


class Progress(Message, frozen=True):
    """Start-up progress for whoever watches. fraction in 0..1, or None where it is unknown."""

    service: str
    text: str
    fraction: float | None = None
    pipeline: int = 0
