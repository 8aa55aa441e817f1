"""`skipjoin report`: results as a table, a page and pictures."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shared.errors import ConfigError, SkipjoinError

if TYPE_CHECKING:
    from loadgen.report import results


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    report = commands.add_parser(
        "report",
        help="results of `bench` and `compare` as a page with plots",
        epilog="example: skipjoin report results/ --html report.html --png plots/",
    )
    report.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="result files, or folders of them")
    report.add_argument("--html", type=Path, metavar="FILE", help="write the page there")
    report.add_argument("--png", type=Path, metavar="FOLDER", help="write the plots there")
    report.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from loadgen.report import figures

    try:
        if options.html is not None or options.png is not None:
            figures.require()
        cells = show(options.runs)
        if options.html is not None or options.png is not None:
            _draw(options, cells)
    except SkipjoinError as error:
        print(f"skipjoin report: {error}", file=sys.stderr)
        return 2
    return 0


def show(runs: Sequence[Path]) -> "list[results.Cell]":
    """Print the tables of these result files and folders, and return what is in them. Raises RunError."""
    from loadgen.report import page, results, tables

    cells = results.load(runs)
    print(tables.markdown(tables.overview(cells)))
    if limits := tables.limits(cells):
        print(f"\n{tables.markdown(limits)}")
    for name, table in page.comparisons(cells):
        print(f"\n{name}\n\n{tables.markdown(table)}")
    for warning in tables.warnings(cells):
        print(warning, file=sys.stderr)
    return cells


def _draw(options: argparse.Namespace, cells: "list[results.Cell]") -> None:
    from loadgen.report import figures, page

    wanted = {"svg": options.html, "png": options.png}
    drawn = list(figures.draw(cells, [form for form, place in wanted.items() if place is not None]))
    try:
        if options.png is not None:
            options.png.mkdir(parents=True, exist_ok=True)
            for figure in drawn:
                (options.png / f"{figure.name}.png").write_bytes(figure.pictures["png"])
        if options.html is not None:
            options.html.write_text(page.render(cells, drawn), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"report: {error.filename} cannot be written ({error.strerror})") from None
