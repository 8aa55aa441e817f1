"""How well a cost model predicts: errors by kind of iteration, and whether it still holds on this machine."""

import math
from collections import deque
from collections.abc import Iterable, Sequence

from services.profiler.core import Kind, Measurement
from shared.costmodel import CostModel

QUANTILES = (0.5, 0.95)
WINDOW = 256
"""Iterations of each kind that the error metrics look back on."""

ENOUGH = 3


def relative_error(model: CostModel, measurement: Measurement) -> float:
    """|predicted / measured - 1|."""
    return abs(model.seconds(measurement.load) / measurement.seconds - 1)


def quantile(values: Sequence[float], fraction: float) -> float:
    """By nearest rank: always one of the values, of which there is at least one."""
    return sorted(values)[max(0, math.ceil(fraction * len(values)) - 1)]


class RecentErrors:
    """Errors of predictions as they were made, before the model could learn from the iteration."""

    def __init__(self) -> None:
        self._errors = {kind: deque[float](maxlen=WINDOW) for kind in Kind}

    def note(self, model: CostModel, measurement: Measurement) -> None:
        kind = Kind.of(measurement.load)
        if kind is not None and measurement.seconds > 0:
            self._errors[kind].append(relative_error(model, measurement))

    def quantiles(self) -> Iterable[tuple[Kind, float, float]]:
        """(kind, quantile, error) of every kind that has occurred."""
        for kind, errors in self._errors.items():
            for fraction in QUANTILES if errors else ():
                yield kind, fraction, quantile(errors, fraction)


def disagreement(model: CostModel, measurements: Iterable[Measurement]) -> float:
    """The factor ≥ 1 between prediction and measurement: median by kind, the worst kind counts.

    Kinds of fewer than ENOUGH iterations say nothing: a median of two is no median.
    """
    ratios: dict[Kind, list[float]] = {}
    for measurement in measurements:
        kind = Kind.of(measurement.load)
        if kind is not None and measurement.seconds > 0:
            predicted = model.seconds(measurement.load)
            ratios.setdefault(kind, []).append(predicted / measurement.seconds)
    medians = [quantile(values, 0.5) for values in ratios.values() if len(values) >= ENOUGH]
    return max((max(ratio, 1 / ratio) if ratio > 0 else math.inf for ratio in medians), default=1.0)
