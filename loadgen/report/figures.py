"""Runs as pictures. matplotlib is imported only when one is drawn (extra `plots`)."""

import importlib
import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from loadgen.bench import measure
from loadgen.bench.record import OK, Record
from loadgen.report.results import Cell, targets
from shared.errors import ConfigError

COLOURS = ("#D55E00", "#000000", "#009E73", "#0072B2", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
"""Okabe and Ito's palette: targets and classes stay apart for the colour-blind."""

CURVE_POINTS = 400
"""Of a distribution: more would only make the file large."""

HEADROOM = 1.08
"""Of a linear axis over its largest value."""

BINS = 60
"""Of the rate of output tokens over time."""


class Figure(msgspec.Struct, frozen=True):
    """name: of its file; title: above it; pictures: by form"""

    name: str
    title: str
    pictures: dict[str, bytes]


def require() -> None:
    """Raises ConfigError if nothing can be drawn."""
    try:
        importlib.import_module("matplotlib")
    except ImportError:
        raise ConfigError(
            "report: needs matplotlib, which is not installed: pip install 'skipjoin[plots]'"
        ) from None


def draw(cells: Sequence[Cell], forms: Sequence[str] = ("svg",)) -> Iterator[Figure]:
    """All that there is to show. forms: svg, png. Raises ConfigError."""
    require()
    for figure in _all(cells):
        yield figure.drawn(forms)


def _all(cells: Sequence[Cell]) -> Iterator["_Sheet"]:
    if any(len({cell.x for cell in mine}) > 1 for mine in targets(cells).values()):
        yield over_rate(cells)
        if measure.by_kind(cells[0].records):
            yield by_class(cells)
    for number, group in enumerate(_by_rate(cells)):
        yield distributions(group, f"distributions-{number}")
    for number, cell in enumerate(cells):
        yield timeline(cell, f"timeline-{number}")


def _by_rate(cells: Sequence[Cell]) -> list[list[Cell]]:
    groups: dict[float, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.x, []).append(cell)
    return [groups[x] for x in sorted(groups)]


class _Sheet:
    """Axes, shape [rows, columns], and what becomes of them. width, height: inches of one panel"""

    def __init__(self, name: str, title: str, shape: tuple[int, int], size: tuple[float, float], **more: Any):
        importlib.import_module("matplotlib").use("agg")  # no display needed
        self._pyplot: Any = importlib.import_module("matplotlib.pyplot")
        self.name, self.title = name, title
        (rows, columns), (width, height) = shape, size
        inches = (width * columns, height * rows)
        self._figure, self.axes = self._pyplot.subplots(
            rows, columns, figsize=inches, layout="constrained", squeeze=False, **more
        )

    def drawn(self, forms: Sequence[str]) -> Figure:
        """Closes it."""
        pictures: dict[str, bytes] = {}
        for form in forms:
            buffer = io.BytesIO()
            self._figure.savefig(buffer, format=form, dpi=120)
            pictures[form] = buffer.getvalue()
        self._pyplot.close(self._figure)
        return Figure(self.name, self.title, pictures)


def _logarithmic(axis: Any, values: Sequence[float]) -> None:
    """With plain numbers as labels; linear where a decade would hold one label at most."""
    positive = [value for value in values if value > 0]
    if not positive or max(positive) < 4 * min(positive):
        if axis.axis_name == "y":
            axis.axes.set_ylim(0, HEADROOM * max(positive, default=1.0))
        return
    ticker: Any = importlib.import_module("matplotlib.ticker")
    {"x": axis.axes.set_xscale, "y": axis.axes.set_yscale}[axis.axis_name]("log")
    decades = np.log10(max(positive) / min(positive))
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if decades < 2.5 else (1,)))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(ticker.NullFormatter())


# ---------------------------------------------------------------- over the rate


def over_rate(cells: Sequence[Cell]) -> _Sheet:
    """Latency per output token, TTFT, throughput and goodput over the rate, a line per target."""
    panels: list[tuple[str, Callable[[measure.Summary], float], str]] = [
        ("latency per output token, mean, s", lambda summary: summary.per_token.mean, "y"),
        ("latency per output token, P95, s", lambda summary: summary.per_token.p95, "y"),
        ("TTFT, P95, s", lambda summary: summary.ttft.p95, "y"),
        ("output tokens per second", lambda summary: summary.output_rate, ""),
        ("TBT, P99, s", lambda summary: summary.tbt.p99, "y"),
        ("requests that met the objective, %", lambda summary: 100 * summary.met, ""),
    ]
    summaries = {cell.name: cell.summary() for cell in cells}
    sheet = _Sheet("over-rate", "Over the rate of requests", (2, 3), (4.0, 3.2))
    for panel, (label, of, scale) in zip(sheet.axes.flatten(), panels, strict=True):
        values = _lines(panel, cells, lambda cell, of=of: of(summaries[cell.name]))
        panel.set(xlabel=_rate_label(cells), ylabel=label)
        if scale:
            _logarithmic(panel.yaxis, values)
        else:
            panel.set_ylim(0, None)
    for panel in sheet.axes[0][:2]:
        _limit(panel.axhline, cells)
    sheet.axes[0][0].legend(fontsize=8)
    return sheet


def by_class(cells: Sequence[Cell]) -> _Sheet:
    """Completion time of each class over the rate: mean above, P95 below."""
    kinds = list(dict.fromkeys(kind for cell in cells for kind in measure.by_kind(cell.records)))
    sheet = _Sheet("by-class", "Completion time (due to last token) by class", (2, len(kinds)), (4.0, 3.2))
    for column, kind in enumerate(kinds):
        summaries = {cell.name: cell.summary(kind).jct for cell in cells}
        for row, (word, field) in enumerate((("mean", "mean"), ("P95", "p95"))):
            panel = sheet.axes[row][column]
            values = _lines(panel, cells, lambda cell, f=field, s=summaries: getattr(s[cell.name], f))
            panel.set(xlabel=_rate_label(cells), ylabel=f"JCT, {word}, s", title=kind)
            _logarithmic(panel.yaxis, values)
    sheet.axes[0][0].legend(fontsize=8)
    return sheet


def _lines(panel: Any, cells: Sequence[Cell], of: Callable[[Cell], float]) -> list[float]:
    """A line per target; returns what was drawn."""
    drawn: list[float] = []
    for number, (target, mine) in enumerate(targets(cells).items()):
        values = [of(cell) for cell in mine]
        drawn += [value for value in values if value == value]
        colour = COLOURS[number % len(COLOURS)]
        panel.plot([cell.x for cell in mine], values, marker="o", markersize=4, label=target, color=colour)
    return drawn


def _rate_label(cells: Sequence[Cell]) -> str:
    return "rate, of capacity" if any(cell.load is not None for cell in cells) else "rate, requests/s"


def _limit(line: Callable[..., Any], cells: Sequence[Cell]) -> None:
    limit = cells[0].limit
    if limit is not None:
        line(limit, color="grey", linestyle="--", linewidth=1, label=f"objective, {limit:.2g} s")


# ---------------------------------------------------------------- distributions


def distributions(cells: Sequence[Cell], name: str) -> _Sheet:
    """What share of requests (or gaps) took at most so long, a line per target."""
    sheet = _Sheet(name, f"Distributions, {_at(cells[0])}", (1, 4), (3.6, 3.3))
    panels = sheet.axes[0]
    for number, cell in enumerate(cells):
        done = measure.completed(cell.records)
        drawn = (
            [measure.ttft(each) for each in done],
            [gap for each in done for gap in measure.gaps(each)],
            [measure.per_token(each) for each in done],
            [measure.jct(each) for each in done],
        )
        for panel, values in zip(panels, drawn, strict=True):
            _curve(panel, values, cell.target, COLOURS[number % len(COLOURS)])
    labels = ("TTFT, s", "TBT, s", "latency per output token, s", "JCT, s")
    for panel, label in zip(panels, labels, strict=True):
        drawn_x = [x for line in panel.lines for x in line.get_xdata()]
        panel.set(xlabel=label, ylabel="share of gaps" if "TBT" in label else "share of requests")
        panel.set_ylim(0, 1.02)
        _logarithmic(panel.xaxis, drawn_x)
    _limit(panels[2].axvline, cells)
    panels[0].legend(fontsize=8)
    return sheet


def _curve(panel: Any, values: Sequence[float], label: str, colour: str) -> None:
    if values:
        shares = np.linspace(0, 1, min(CURVE_POINTS, len(values)))
        panel.plot(np.quantile(values, shares), shares, label=label, color=colour)


def _at(cell: Cell) -> str:
    if cell.load is not None:
        return f"at {cell.load:g} of capacity"
    return "arrivals of the trace" if cell.rate is None else f"at {cell.rate:.3g} requests/s"


# ---------------------------------------------------------------- timeline


def timeline(cell: Cell, name: str) -> _Sheet:
    """The first repeat: each request from when it was due, then what was open and generated at each time."""
    records = cell.runs[0].records
    kinds = list(dict.fromkeys(record.kind for record in records))
    sheet = _Sheet(
        name, f"Timeline, {cell.name}", (3, 1), (10.0, 2.4), sharex=True, height_ratios=(2.2, 1, 1)
    )
    lanes, count, tokens = sheet.axes[:, 0]
    for number, record in enumerate(records):
        _lane(lanes, number, record, COLOURS[kinds.index(record.kind) % len(COLOURS)])
    for number, kind in enumerate(kinds):
        lanes.plot([], [], color=COLOURS[number % len(COLOURS)], linewidth=3, label=f"{kind}, answer")
    lanes.plot([], [], color="#cccccc", linewidth=3, label="due, no token yet")
    if any(record.outcome != OK for record in records):
        lanes.plot([], [], "x", color="red", label="failed")
    lanes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    lanes.set(ylabel="request", ylim=(len(records), -1))
    _open(count, records)
    _generated(tokens, records)
    tokens.set(xlabel="time, s", ylabel="output tokens/s", ylim=(0, None))
    return sheet


def _lane(panel: Any, y: int, record: Record, colour: str) -> None:
    last = record.end or record.scheduled
    first = record.first or last
    panel.hlines(y, record.scheduled, first, color="#cccccc", linewidth=1.5)
    panel.hlines(y, first, last, color=colour, linewidth=1.5)
    if record.outcome != OK:
        panel.plot(last, y, "x", color="red", markersize=4)


def _open(panel: Any, records: Sequence[Record]) -> None:
    """Requests that are due and not over."""
    steps = [(record.scheduled, 1) for record in records]
    steps += [(record.end, -1) for record in records if record.end is not None]
    if steps:
        times, changes = np.array(sorted(steps)).T
        panel.step(times, np.cumsum(changes), where="post", color="black")
    panel.set(ylabel="open requests", ylim=(0, None))


def _generated(panel: Any, records: Sequence[Record]) -> None:
    """An answer whose chunks were not counted is spread over them evenly."""
    answers = [record for record in records if record.arrivals]
    if not answers:
        return
    times = np.concatenate([record.arrivals for record in answers])
    each = [
        record.chunk_tokens or [(record.output or 0) / len(record.arrivals)] * len(record.arrivals)
        for record in answers
    ]
    counts, edges = np.histogram(times, bins=BINS, weights=np.concatenate(each))
    panel.stairs(counts / np.diff(edges), edges, color="black")
