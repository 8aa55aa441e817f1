"""One Prometheus page for the whole application, out of the metrics of its services."""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from shared.messages import MetricFamily

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _Merged(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics


def render(own: CollectorRegistry, services: Mapping[tuple[int, str], list[MetricFamily] | None]) -> str:
    """Text format of this process's metrics and those of `services`, by pipeline and name (None: it did not
    answer).

    Families of the same name become one; what several services measure carries a label that tells them apart.
    So do pipelines but the first: its series are the same, whether others come and go or not.
    """
    merged: dict[str, Metric] = {}
    for family in own.collect():
        merged[family.name] = family
    up = Metric("skipjoin_up", "Whether the service answered when its metrics were collected.", "gauge")
    merged[up.name] = up
    for (pipeline, service), families in services.items():
        whose = {"pipeline": str(pipeline)} if pipeline else {}
        up.add_sample(up.name, {"service": service, **whose}, 0.0 if families is None else 1.0)
        for family in families or ():
            metric = merged.setdefault(family.name, Metric(family.name, family.documentation, family.kind))
            for sample in family.samples:
                metric.add_sample(sample.name, {**sample.labels, **whose}, sample.value)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Merged(merged.values()))
    return generate_latest(registry).decode()
