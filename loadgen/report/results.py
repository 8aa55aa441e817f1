"""Runs put in order: by target, as the benchmark names them, and rate, repeats together."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np

from loadgen.bench import measure, record
from loadgen.bench.measure import Summary
from loadgen.bench.record import Record, Run, RunError
from loadgen.bench.settings import Objective
from loadgen.bench.settings import parse as parse_settings
from shared.errors import ConfigError


class Cell(msgspec.Struct, frozen=True):
    """One target at one rate, its repeats pooled. rate: requests/s, None: of a trace"""

    target: str
    rate: float | None
    load: float | None
    runs: tuple[Run, ...]
    objective: Objective

    @property
    def name(self) -> str:
        if self.load is not None:
            return f"{self.target}, {self.load:g} of capacity"
        return self.target if self.rate is None else f"{self.target}, {self.rate:.3g} req/s"

    @property
    def x(self) -> float:
        """Where it lies on an axis of rates."""
        return self.load if self.load is not None else (self.rate or 0.0)

    @property
    def lone_iteration_s(self) -> float | None:
        return self.runs[0].header.lone_iteration_s

    @property
    def limit(self) -> float | None:
        """Of the latency per output token, seconds."""
        return measure.per_token_limit(self.objective, self.lone_iteration_s)

    @property
    def records(self) -> list[Record]:
        return [each for run in self.runs for each in run.records]

    def summary(self, kind: str | None = None) -> Summary:
        """Over all repeats. Rates are means over them: each has a time of its own."""
        pooled = self._summarise(self.records, kind)
        each = [self._summarise(run.records, kind) for run in self.runs]
        return msgspec.structs.replace(
            pooled,
            **{
                name: float(np.mean([getattr(one, name) for one in each]))
                for name in ("throughput", "output_rate", "goodput", "seconds")
            },
        )

    def _summarise(self, records: Sequence[Record], kind: str | None) -> Summary:
        chosen = [each for each in records if kind in (None, each.kind)]
        return measure.summarise(chosen, self.objective, self.lone_iteration_s)


def load(paths: Sequence[Path]) -> list[Cell]:
    """Raises RunError for what is no result."""
    runs = [(path, record.read(path)) for path in record.find(paths)]
    # The same multiple of the capacity is one place on the axis, also if the capacity was measured twice.
    groups: dict[tuple[str, float | None, float | None], list[Run]] = {}
    objectives: dict[str, Objective] = {}
    for path, run in runs:
        header = run.header
        try:
            objectives[header.target] = parse_settings(header.benchmark, str(path)).objective
        except ConfigError as error:
            raise RunError(str(error)) from None
        rate = header.rate if header.load is None else None
        groups.setdefault((header.target, header.load, rate), []).append(run)
    settings = (run.header.benchmark["targets"] for _, run in runs)
    order = list(dict.fromkeys([*(name for targets in settings for name in targets), *objectives]))
    cells: list[Cell] = []
    for (target, load, _), members in groups.items():
        members.sort(key=lambda run: (run.header.repeat, run.header.when))
        cells.append(Cell(target, members[0].header.rate, load, tuple(members), objectives[target]))
    return sorted(cells, key=lambda cell: (order.index(cell.target), cell.x))


def targets(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """Cells by target, by rate."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.target, []).append(cell)
    return found


def rate_at_limit(cells: Sequence[Cell]) -> float | None:
    """Where the mean latency per output token of one target first reaches its limit, between the rates that
    were measured; in their unit. None if it does not, or there is no limit.
    """
    points = [(cell.x, cell.summary().per_token.mean) for cell in cells]
    limit = cells[0].limit
    if limit is None:
        return None
    for (before, low), (after, high) in pairwise(points):
        if low <= limit < high:
            return before + (after - before) * (limit - low) / (high - low)
    return None
