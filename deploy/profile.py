"""`skipjoin profile`: what the profiler measured on this machine, and how well the cost model predicts it."""

import argparse
import importlib
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from deploy.options import add_config_arguments, load
from services.profiler import cache, hardware
from services.profiler.accuracy import QUANTILES, quantile, relative_error
from services.profiler.cache import Profile, ProfileKey
from services.profiler.core import CostFitter, Kind, Measurement
from shared.config import Config
from shared.costmodel import CostModel
from shared.errors import SkipjoinError

UNITS = {
    "prefill_a": "s",
    "prefill_b": "s/token",
    "prefill_c": "s/token²",
    "decode_a": "s",
    "decode_b": "s/token of context",
    "decode_c": "s/job",
}

CONTEXT_STEP = 32
"""Decode iterations whose mean context is this close share a row, tokens."""


class NothingToShow(SkipjoinError):
    """There is no profile, or no way to draw it; the message is the remedy."""


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to those of `skipjoin`."""
    command = commands.add_parser(
        "profile",
        help="show what iterations cost on this machine and how well that is predicted",
        epilog="example: skipjoin profile --plot cost.png --json cost.json",
    )
    command.set_defaults(run=run)
    add_config_arguments(command)
    command.add_argument("--json", type=Path, metavar="FILE", help="write the cost model for the simulator")
    command.add_argument("--plot", type=Path, metavar="FILE", help="draw measured over predicted as a PNG")


def run(options: argparse.Namespace) -> int:
    """Raises ConfigError. Returns the exit status: 1 if there is nothing to show."""
    config, _ = load(options)
    try:
        profile = find(config)
        measurements = profile.measurements()
        model = CostFitter(measurements).fit()
        sys.stdout.write(report(profile, model))
        if options.json is not None:
            options.json.write_bytes(to_json(model))
        if options.plot is not None:
            plot(options.plot, measurements, model)
    except (NothingToShow, OSError) as error:
        sys.stderr.write(f"skipjoin profile: {error}\n")
        return 1
    return 0


def find(config: Config) -> Profile:
    """This machine's profile of the configuration, or the newest of another machine in the same folder.

    Raises NothingToShow.
    """
    folder = cache.folder(config)
    key = ProfileKey.of(config, hardware.describe([]))
    profile = cache.load(folder, key)
    profiles = [profile] if profile is not None else cache.of_any_hardware(folder, key)
    if not profiles:
        raise NothingToShow(
            f"{folder} holds no profile of this configuration: start the server once (skipjoin serve "
            "with the same CONFIG and --set), it measures and keeps one"
        )
    return profiles[0]


def to_json(model: CostModel) -> bytes:
    """Coefficients, `samples` and `units`, as the simulator reads them."""
    values: dict[str, Any] = {**dict(_coefficients(model)), "samples": model.samples, "units": UNITS}
    return msgspec.json.format(msgspec.json.encode(values), indent=2) + b"\n"


# ---------------------------------------------------------------- text


def report(profile: Profile, model: CostModel) -> str:
    """Everything `skipjoin profile` prints."""
    measurements = profile.measurements()
    parts = [
        _head(profile.key, model.samples, profile.measured),
        _table(
            ["coefficient", "value", "unit"],
            [[name, f"{value:.3e}", UNITS[name]] for name, value in _coefficients(model)],
        ),
        _table(
            ["kind", "size", "iterations", "measured, ms", "predicted, ms", "error"],
            list(_size_rows(measurements, model)),
        ),
        _table(
            ["relative error", *(f"P{100 * fraction:.0f}" for fraction in QUANTILES)],
            list(_error_rows(measurements, model)),
        ),
    ]
    return "\n".join(parts)


def _head(key: ProfileKey, samples: int, measured: str) -> str:
    return (
        f"{key.model}, {key.dtype}, stages: {key.pipeline_stages}, ranks each: {key.tensor_parallel}, "
        f"threads each: {key.threads}\n"
        f"{key.hardware}; skipjoin {key.skipjoin}, torch {key.torch}\n"
        f"{samples} iterations, measured {measured}\n"
    )


def _coefficients(model: CostModel) -> Iterable[tuple[str, float]]:
    return ((name, getattr(model, name)) for name in UNITS)


def _size_rows(measurements: Iterable[Measurement], model: CostModel) -> Iterable[list[str]]:
    """Median measured and predicted time by kind and size."""
    for size, group in groupby(sorted(measurements, key=_size), key=_size):
        items = list(group)
        measured = quantile([item.seconds for item in items], 0.5)
        predicted = quantile([model.seconds(item.load) for item in items], 0.5)
        yield [
            *_size_text(size),
            str(len(items)),
            f"{1e3 * measured:.1f}",
            f"{1e3 * predicted:.1f}",
            f"{100 * (predicted / measured - 1):+.1f} %",
        ]


def _size(measurement: Measurement) -> tuple[int, int, int, int]:
    """Sorts and groups: kind, prompt tokens, decoding jobs, their mean context in steps."""
    load = measurement.load
    step = round(load.decode_context / load.decode_jobs / CONTEXT_STEP) if load.decode_jobs else 0
    kind = Kind.of(load)
    return (list(Kind).index(kind) if kind else 0, load.prefill_tokens, load.decode_jobs, step)


def _size_text(size: tuple[int, int, int, int]) -> tuple[str, str]:
    kind, tokens, jobs, step = size
    parts = [f"{tokens} tokens"] if tokens else []
    if jobs:
        parts.append(f"{jobs} {'job' if jobs == 1 else 'jobs'} at {max(step, 1) * CONTEXT_STEP}")
    return list(Kind)[kind].value, " + ".join(parts)


def _error_rows(measurements: Sequence[Measurement], model: CostModel) -> Iterable[list[str]]:
    for kind in Kind:
        errors = [relative_error(model, item) for item in measurements if Kind.of(item.load) is kind]
        if errors:
            yield [kind.value, *(f"{100 * quantile(errors, fraction):.1f} %" for fraction in QUANTILES)]


def _table(head: list[str], rows: list[list[str]]) -> str:
    """Aligned columns: text to the left, numbers to the right."""
    columns = [_aligned(column) for column in zip(head, *rows, strict=True)]
    return "".join("  ".join(cells).rstrip() + "\n" for cells in zip(*columns, strict=True))


def _aligned(column: Sequence[str]) -> list[str]:
    width = max(map(len, column))
    return [text.rjust(width) if _is_number(column[-1]) else text.ljust(width) for text in column]


def _is_number(text: str) -> bool:
    try:
        float(text.removesuffix(" %"))
    except ValueError:
        return False
    return True


# ---------------------------------------------------------------- plot


def plot(file: Path, measurements: Iterable[Measurement], model: CostModel) -> None:
    """Measured over predicted seconds, a colour per kind; on the diagonal the model is right.

    Raises NothingToShow without matplotlib.
    """
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
    except ImportError:
        raise NothingToShow(
            "--plot needs matplotlib, which is not installed: pip install matplotlib"
        ) from None
    matplotlib.use("agg")  # no display needed
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(figsize=(6, 6), layout="constrained")
    _draw(axes, list(measurements), model.seconds)
    figure.savefig(file, format="png", dpi=150)
    pyplot.close(figure)


def _draw(axes: Any, measurements: Sequence[Measurement], seconds: Callable[..., float]) -> None:
    for kind in Kind:
        items = [item for item in measurements if Kind.of(item.load) is kind]
        axes.scatter(
            [1e3 * seconds(item.load) for item in items],
            [1e3 * item.seconds for item in items],
            label=f"{kind.value} ({len(items)})",
            s=18,
            alpha=0.7,
        )
    ends = [
        1e3 * min(item.seconds for item in measurements),
        1e3 * max(item.seconds for item in measurements),
    ]
    axes.plot(ends, ends, color="grey", linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="predicted, ms", ylabel="measured, ms")
    axes.set_title("One iteration, all stages")
    axes.legend()
