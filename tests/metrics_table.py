"""The table of all metrics in CONTRIBUTING.md, out of the services' own registries.

python -m tests.metrics_table       # prints it
"""

import asyncio
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

from services.gateway.collect import UP
from shared.service import Service

HEADER = "| metric | type | labels | |\n|---|---|---|---|"


class MetricRow(NamedTuple):
    """name: as it is exposed, a counter's with `_total`"""

    name: str
    type: str
    labels: tuple[str, ...]
    documentation: str

    @property
    def line(self) -> str:
        labels = ", ".join(f"`{label}`" for label in self.labels)
        return f"| `{self.name}` | {self.type} | {labels} | {self.documentation} |"


def rows_of(services: Iterable[Service]) -> list[MetricRow]:
    """Of each family once, by name. The services have been started: some metrics are made then."""
    rows = {UP.name: MetricRow(UP.name, UP.type, ("service",), UP.documentation)}
    for service in services:
        metrics: set[Any] = set(service.registry.collector._names_to_collectors.values())
        for metric in metrics:
            name = f"{metric._name}_total" if metric._type == "counter" else metric._name
            rows[name] = MetricRow(name, metric._type, tuple(metric._labelnames), metric._documentation)
    return [rows[name] for name in sorted(rows)]


def table(rows: Iterable[MetricRow]) -> str:
    return "\n".join([HEADER, *(row.line for row in rows)])


async def _main() -> None:
    from tests.application import Application

    async with Application() as app:
        sys.stdout.write(table(rows_of(app.services)) + "\n")


if __name__ == "__main__":
    asyncio.run(_main())
