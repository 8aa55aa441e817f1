"""The metrics of one service on their way to the gateway that is scraped."""

from shared.messages.base import Message, Part


class Sample(Part, frozen=True):
    name: str
    labels: dict[str, str]
    value: float


class MetricFamily(Part, frozen=True):
    name: str
    documentation: str
    kind: str
    samples: list[Sample]


class CollectMetrics(Message, frozen=True):
    """Ask a service for its metrics."""


class Metrics(Message, frozen=True):
    families: list[MetricFamily]
