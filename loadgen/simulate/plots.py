"""The studies as PNGs. matplotlib is imported only when one is asked for (extra `plots`)."""

import importlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from loadgen.simulate import ablation as ablation_study
from loadgen.simulate import grid as grid_study
from loadgen.simulate import paper as paper_study
from loadgen.simulate.ledger import JobRecord
from shared.errors import ConfigError

COLOURS = {
    "fcfs": "#000000",
    "fixed-priority": "#E69F00",
    "mlfq": "#56B4E9",
    "skip-join": "#D55E00",
    "gittins": "#009E73",
    "srpt": "#CC79A7",
    "fair": "#0072B2",
    "vllm": "#999999",
}
"""Okabe and Ito's palette: the policies stay apart for the colour-blind."""

OTHER = "#F0E442"

NARROW = 4.0
"""A range below this factor is drawn on a linear axis."""

_T = TypeVar("_T")


def require(file: Path) -> None:
    """Raises ConfigError if nothing can be drawn there."""
    try:
        importlib.import_module("matplotlib")
    except ImportError:
        raise ConfigError(
            f"--plot {file}: needs matplotlib, which is not installed: pip install 'skipjoin[plots]'"
        ) from None
    if not file.parent.is_dir():
        raise ConfigError(f"--plot {file}: there is no folder {file.parent}")


@contextmanager
def _figure(file: Path, rows: int, columns: int, width: float, height: float) -> Iterator[Any]:
    """Axes, shape [rows, columns]; written to the file afterwards. width, height: inches of one of them

    Raises ConfigError.
    """
    require(file)
    importlib.import_module("matplotlib").use("agg")  # no display needed
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(width * columns, height * rows), layout="constrained", squeeze=False
    )
    try:
        yield axes
        figure.savefig(file, format="png", dpi=120)
    except OSError as error:
        raise ConfigError(f"--plot {file}: {error.strerror}") from None
    finally:
        pyplot.close(figure)


def _unique(values: Iterable[_T]) -> list[_T]:
    """In the order of their first appearance."""
    return list(dict.fromkeys(values))


def _scale(axis: Any, values: Iterable[float]) -> None:
    """Logarithmic with plain numbers as labels; linear where a decade would hold one label at most."""
    positive = [value for value in values if value > 0]
    if not positive or max(positive) < NARROW * min(positive):
        return
    ticker: Any = importlib.import_module("matplotlib.ticker")
    {"x": axis.axes.set_xscale, "y": axis.axes.set_yscale}[axis.axis_name]("log")
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(ticker.NullFormatter())


def _width(position: int, count: int) -> float:
    """Points. The first line is the widest: those that coincide with it lie visibly inside."""
    return 1.5 + 0.7 * (count - 1 - position)


# ---------------------------------------------------------------- run


def run(file: Path, records: Sequence[JobRecord], policy: str, slo_s: float) -> None:
    """How latency per token and time to first token are distributed, and the unfinished jobs over time.

    Raises ConfigError, as all that follow.
    """
    done = [record for record in records if record.finished]
    colour = COLOURS.get(policy, OTHER)
    with _figure(file, 1, 3, 4.2, 3.6) as axes:
        left, middle, right = axes[0]
        for panel, values, label in (
            (left, [record.latency_per_token for record in done], "latency, s per output token"),
            (middle, [record.first_token for record in done], "time to first token, s"),
        ):
            panel.plot(np.sort(values), np.arange(1, len(done) + 1) / max(1, len(done)), color=colour)
            panel.set(xlabel=label, ylabel="share of requests", ylim=(0, 1.02))
            _scale(panel.xaxis, values)
        left.axvline(slo_s, color="grey", linestyle="--", linewidth=1, label=f"{slo_s:g} s")
        left.legend(fontsize=8)
        times, unfinished = _unfinished(done)
        right.step(times, unfinished, where="post", color=colour)
        right.set(xlabel="time, s", ylabel="unfinished requests", ylim=(0, None))
        middle.set_title(f"{policy}, {len(done)} requests")


def _unfinished(records: Sequence[JobRecord]) -> tuple[Any, Any]:
    """Times, seconds, and the number of jobs that have arrived and not ended from then on."""
    arrivals = [(record.arrival, 1) for record in records]
    ends = [(record.token_times[-1], -1) for record in records]
    times, steps = np.array(sorted(arrivals + ends)).reshape(-1, 2).T
    return times, np.cumsum(steps)


# ---------------------------------------------------------------- paper


def paper(file: Path, rows: Sequence[paper_study.Row]) -> None:
    """Rate at the SLO by policy, a panel per regime and metric; the published one is a diamond."""
    regimes, metrics = _unique(row.regime for row in rows), _unique(row.metric for row in rows)
    groups = _unique((row.model, row.lengths) for row in rows)
    policies = _unique(row.policy for row in rows)
    with _figure(file, len(regimes), len(metrics), max(4.0, 1.4 + 1.3 * len(groups)), 3.6) as axes:
        for i, regime in enumerate(regimes):
            for j, metric in enumerate(metrics):
                shown = [row for row in rows if (row.regime, row.metric) == (regime, metric)]
                _bars(axes[i][j], shown, groups, policies)
                axes[i][j].set_title(f"{metric}, {regime}")
        axes[0][0].legend(fontsize=8)


def _bars(
    panel: Any, rows: Sequence[paper_study.Row], groups: Sequence[tuple[str, str]], policies: Sequence[str]
) -> None:
    width = 0.8 / len(policies)
    anchored = False
    for row in rows:
        place = policies.index(row.policy)
        x = groups.index((row.model, row.lengths)) + (place - (len(policies) - 1) / 2) * width
        colour = COLOURS.get(row.policy, OTHER)
        named = panel.get_legend_handles_labels()[1]
        label = row.policy if row.policy not in named else None
        panel.bar(x, row.rate_at_slo, 0.9 * width, color=colour, label=label)
        if row.anchor is not None:
            label = None if anchored else "published"
            panel.plot(x, row.anchor, "D", color="white", markeredgecolor="black", label=label, linestyle="")
            anchored = True
    panel.set_xticks(range(len(groups)), [f"{model}\n{lengths}" for model, lengths in groups])
    panel.set(xlim=(-0.6, len(groups) - 0.4), ylabel="req/s at 0.3 s per token")
    _scale(panel.yaxis, [row.rate_at_slo for row in rows])


# ---------------------------------------------------------------- ablation


def ablation(file: Path, points: Sequence[ablation_study.Point]) -> None:
    """Mean latency per token over what each study varies: a panel each, its policies as lines."""
    studies = _unique(point.study for point in points)
    columns = min(3, len(studies))
    rows = -(-len(studies) // columns)
    with _figure(file, rows, columns, 4.4, 3.4) as axes:
        panels = axes.flatten()
        for panel, study in zip(panels, studies, strict=False):
            _lines(panel, [point for point in points if point.study == study])
            panel.set_title(study)
        for panel in panels[len(studies) :]:
            panel.axis("off")


def _lines(panel: Any, points: Sequence[ablation_study.Point]) -> None:
    """A line per policy; a study of one policy at several rates has the rate below and a line per value."""
    rated = len(_unique(point.policy for point in points)) == 1 < len(_unique(point.rate for point in points))
    named = [(point.value, f"{point.rate:g}") if rated else (point.policy, point.value) for point in points]
    names, places = _unique(name for name, _ in named), _unique(place for _, place in named)
    palette = dict(zip(names, COLOURS.values(), strict=False)) if rated else COLOURS
    for number, name in enumerate(names):
        mine = [
            (places.index(place), point.mean)
            for point, (other, place) in zip(points, named, strict=True)
            if other == name
        ]
        panel.plot(
            *zip(*mine, strict=True), marker="o", markersize=4, label=name,
            color=palette.get(name, OTHER), linewidth=_width(number, len(names)),
        )  # fmt: skip
    panel.set_xticks(range(len(places)), places)
    panel.set(ylabel="mean, s per token", xlabel="requests a second" if rated else "")
    _scale(panel.yaxis, [point.mean for point in points])
    panel.legend(fontsize=8)


# ---------------------------------------------------------------- grid


def grid(file: Path, result: grid_study.Grid) -> None:
    """Mean latency per token over the load, a row per shape of lengths, a column per cv of the arrivals."""
    names = _unique(point.cell.lengths for point in result.points)
    cvs = sorted({point.cell.cv for point in result.points})
    policies = _unique(point.cell.policy for point in result.points)
    with _figure(file, len(names), len(cvs), 3.4, 2.9) as axes:
        for i, name in enumerate(names):
            for j, cv in enumerate(cvs):
                points = [p for p in result.points if (p.cell.lengths, p.cell.cv) == (name, cv)]
                _over_load(axes[i][j], points, policies)
                axes[i][j].set_title(f"{name}, cv {cv:g}", fontsize=10)
            axes[i][0].set_ylabel("mean, s per token")
        for panel in axes[-1]:
            panel.set_xlabel("load, of what fcfs sustains")
        axes[0][0].legend(fontsize=8)


def _over_load(panel: Any, points: Sequence[grid_study.Point], policies: Sequence[str]) -> None:
    for number, policy in enumerate(policies):
        mine = sorted((point.cell.load, point.mean) for point in points if point.cell.policy == policy)
        panel.plot(
            [load for load, _ in mine], [mean for _, mean in mine], marker="o", markersize=3, label=policy,
            color=COLOURS.get(policy, OTHER), linewidth=_width(number, len(policies)),
        )  # fmt: skip
    panel.axhline(paper_study.SLO_S, color="grey", linestyle="--", linewidth=1)
    _scale(panel.yaxis, [paper_study.SLO_S, *(point.mean for point in points)])
