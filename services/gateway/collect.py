"""One Prometheus page for the whole application, out of the metrics of its services."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from shared.messages import MetricFamily

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

UP = Metric("skipjoin_up", "Whether the service answered when its metrics were collected.", "gauge")


class _Merged(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics


class Source(NamedTuple):
    """Of metrics. pipeline: None for what belongs to none; gateway: which one it is, of those there are"""

    service: str
    pipeline: int | None = None
    gateway: str | None = None

    @property
    def labels(self) -> dict[str, str]:
        """Of its series. The first pipeline's are the same, whether others come and go or not. Gateways are
        all alike, so that each is named.
        """
        if self.gateway is not None:
            return {"gateway": self.gateway}
        return {"pipeline": str(self.pipeline)} if self.pipeline else {}


def render(services: Mapping[Source, list[MetricFamily] | None]) -> str:
    """Text format of the metrics of all services (None: it did not answer).

    Families of the same name become one; what several services measure carries a label that tells them apart.
    """
    up = Metric(UP.name, UP.documentation, UP.type)
    merged: dict[str, Metric] = {up.name: up}
    for source, families in services.items():
        up.add_sample(up.name, {"service": source.service, **source.labels}, 0.0 if families is None else 1.0)
        for family in families or ():
            metric = merged.setdefault(family.name, Metric(family.name, family.documentation, family.kind))
            for sample in family.samples:
                metric.add_sample(sample.name, {**sample.labels, **source.labels}, sample.value)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Merged(merged.values()))
    return generate_latest(registry).decode()
