"""The report as one HTML file that needs nothing else."""

import base64
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import jinja2
import msgspec
import yaml

from loadgen.bench import compare
from loadgen.report import tables
from loadgen.report.figures import Figure
from loadgen.report.results import Cell, targets
from loadgen.report.tables import Table


def render(cells: Sequence[Cell], figures: Sequence[Figure]) -> str:
    """Text of runs (names, answers of servers) is escaped."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True)
    environment.filters["base64"] = lambda data: base64.b64encode(data).decode()
    return environment.get_template("page.html").render(
        title=", ".join(targets(cells)),
        warnings=list(tables.warnings(cells)),
        overview=tables.overview(cells),
        limits=tables.limits(cells),
        comparisons=list(comparisons(cells)),
        figures=figures,
        details=[(cell.name, tables.details(cell)) for cell in cells],
        settings=[(cell.name, _settings(cell)) for cell in cells],
    )


def comparisons(cells: Sequence[Cell]) -> list[tuple[str, Table]]:
    """Each later target against the first, at every rate that both played with the same requests."""
    found: list[tuple[str, Table]] = []
    for a, b in combinations(cells, 2):
        if a.target != next(iter(targets(cells))) or a.target == b.target or a.x != b.x:
            continue
        ratios = compare.ratios(compare.paired(a.runs, b.runs))
        rate = compare.throughput(a.runs, b.runs)
        ratios += [rate] if rate is not None else []
        if ratios:
            name = f"{b.name} against {a.target}"
            found.append((name, tables.compared(ratios, a.target, b.target)))
    return found


def _settings(cell: Cell) -> str:
    header = cell.runs[0].header
    return yaml.safe_dump(msgspec.to_builtins(header), sort_keys=False, allow_unicode=True)
