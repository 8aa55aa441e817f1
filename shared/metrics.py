"""Prometheus metrics of one process, and their way over the bus to the gateway that is scraped."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from shared.messages import MetricFamily, Metrics, Sample

disable_created_metrics()  # a second series per counter that nobody asked for

LATENCY_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
)  # fmt: skip
"""Upper bounds, seconds: from one message on the bus to a long answer under overload."""


class RunningTotal:
    """A counter that follows a sum which somebody else keeps; the sum must not fall."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._last = 0.0

    def follow(self, total: float) -> None:
        self._counter.inc(total - self._last)
        self._last = total


class Registry:
    """A registry of its own per service, so that tests can run several in one process."""

    def __init__(self) -> None:
        self.collector = CollectorRegistry()
        self._counters: dict[str, Counter] = {}

    def counter(self, name: str, documentation: str, labels: list[str] | None = None) -> Counter:
        """The counter of this name; asked for twice, it is the same one."""
        if name not in self._counters:
            self._counters[name] = Counter(name, documentation, labels or [], registry=self.collector)
        return self._counters[name]

    def gauge(self, name: str, documentation: str, labels: list[str] | None = None) -> Gauge:
        return Gauge(name, documentation, labels or [], registry=self.collector)

    def histogram(
        self,
        name: str,
        documentation: str,
        labels: list[str] | None = None,
        buckets: tuple[float, ...] = LATENCY_BUCKETS,
    ) -> Histogram:
        return Histogram(name, documentation, labels or [], registry=self.collector, buckets=buckets)

    def export(self) -> Metrics:
        """Everything in it, as a message."""
        return Metrics(
            [
                MetricFamily(
                    family.name,
                    family.documentation,
                    family.type,
                    [Sample(sample.name, dict(sample.labels), sample.value) for sample in family.samples],
                )
                for family in self.collector.collect()
            ]
        )
