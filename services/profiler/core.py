"""Fits the cost model to measured iterations.

prefill = a + b·Σn + c·Σn², decode = a + b·Σcontext + c·batch, a mixed iteration pays the larger a once and
the rest of both. All six coefficients come from one fit and are ≥ 0: an iteration never gets cheaper by doing
more. Three things make it fit for a machine that others use too:

relative: what scheduling feels is the relative error, so every sample is weighted by 1 / seconds
robust: Huber's weights. A sample that is off by more than 1.345 standard deviations pulls only as hard as
    one at that distance, so that a burst of foreign load does not bend the model
forgetful: the weight of a sample halves with every HALF_LIFE newer iterations that tell the same
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec
import numpy as np
import numpy.typing as npt

from shared.costmodel import GUESS, BatchLoad, CostModel

RECENT = 512
"""Iterations of each kind that a fit looks at beside those of the grid."""

HALF_LIFE = 128
"""Newer iterations with prefill (for a decode sample: with decode) after which a sample counts half."""

GRID_FLOOR = 0.05
"""Least weight of the grid's samples: they hold up the model at sizes that the traffic does not have."""

PASSES = 4
"""Solutions per fit; the weights of outliers no longer move much after the third."""

HUBER = 1.345
"""Standard deviations at which a sample begins to count as an outlier: 95 % efficient on normal noise."""

Matrix = npt.NDArray[np.float64]


class Kind(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"

    @classmethod
    def of(cls, load: BatchLoad) -> "Kind | None":
        """None for an iteration without work."""
        if load.prefill_tokens:
            return cls.MIXED if load.decode_jobs else cls.PREFILL
        return cls.DECODE if load.decode_jobs else None


class Measurement(msgspec.Struct, frozen=True, gc=False):
    """One iteration: its work and the compute time of all stages, seconds."""

    load: BatchLoad
    seconds: float


class CostFitter:
    """Collects measurements and fits them.

    grid: measured on purpose at some time, now or in an earlier run; `add` is for everything after it
    """

    def __init__(self, grid: Sequence[Measurement] = ()) -> None:
        self._grid = {kind: _rows([item for item in grid if Kind.of(item.load) is kind]) for kind in Kind}
        self._recent = {kind: _Window() for kind in Kind}
        self._prefills = self._decodes = 0  # iterations since the grid with either half
        self.samples = len(grid)

    def add(self, measurement: Measurement) -> None:
        kind = Kind.of(measurement.load)
        if kind is None or measurement.seconds <= 0:
            return
        self._prefills += kind is not Kind.DECODE
        self._decodes += kind is not Kind.PREFILL
        self._recent[kind].add(_row(measurement), self._now(kind))
        self.samples += 1

    def _now(self, kind: Kind) -> int:
        """What the age of a sample is counted in."""
        return self._decodes if kind is Kind.DECODE else self._prefills

    def fit(self) -> CostModel:
        """The best model of what was measured; what was not measured keeps the guess.

        A mixed iteration shows only the sum of its halves: it counts once both have been seen alone.
        """
        parts = {kind: self._weighted(kind) for kind in Kind}
        measured = {kind for kind, (rows, _) in parts.items() if len(rows)}
        if not measured >= {Kind.PREFILL, Kind.DECODE}:
            measured.discard(Kind.MIXED)
        coefficients = list(msgspec.structs.astuple(GUESS)[:6])
        if measured:
            rows = np.concatenate([parts[kind][0] for kind in sorted(measured)])
            weights = np.concatenate([parts[kind][1] for kind in sorted(measured)])
            fitted = _robust_fit(rows[:, :4], rows[:, 4], weights)
            if Kind.PREFILL in measured:
                coefficients[:3] = fitted[:3]
            if Kind.DECODE in measured:
                coefficients[3:] = fitted[3:]
        return CostModel(*coefficients, samples=self.samples)

    def _weighted(self, kind: Kind) -> tuple[Matrix, Matrix]:
        grid, window, now = self._grid[kind], self._recent[kind], self._now(kind)
        recent_weights = 0.5 ** ((now - window.added) / HALF_LIFE)
        grid_weights = np.full(len(grid), max(GRID_FLOOR, 0.5 ** (now / HALF_LIFE)))
        return np.concatenate([grid, window.rows]), np.concatenate([grid_weights, recent_weights])


class _Window:
    """The last RECENT rows, as an array: a fit must not convert thousands of objects first."""

    def __init__(self) -> None:
        self._rows: Matrix = np.empty((RECENT, 5))
        self._added: Matrix = np.empty(RECENT)
        self._count = 0

    def add(self, row: Sequence[float], now: int) -> None:
        slot = self._count % RECENT
        self._rows[slot], self._added[slot] = row, now
        self._count += 1

    @property
    def rows(self) -> Matrix:
        """[n, 5], in no order."""
        return self._rows[: self._count]

    @property
    def added(self) -> Matrix:
        """When each of `rows` was added [n]."""
        return self._added[: self._count]


def _row(measurement: Measurement) -> tuple[float, ...]:
    load = measurement.load
    return (
        load.prefill_tokens,
        load.prefill_squares,
        load.decode_context,
        load.decode_jobs,
        measurement.seconds,
    )


def _rows(measurements: Sequence[Measurement]) -> Matrix:
    return np.array([_row(item) for item in measurements], dtype=np.float64).reshape(-1, 5)


def _robust_fit(loads: Matrix, seconds: Matrix, weights: Matrix) -> list[float]:
    """The six coefficients from loads [n, 4], seconds [n] and weights [n].

    Which constant a mixed iteration pays is known only from the fit, as are the outliers: solve, look, again.
    """
    trust = np.ones(len(seconds))
    coefficients = [0.0] * 6
    for _ in range(PASSES):
        rows = _design(loads, prefill_larger=coefficients[0] >= coefficients[3]) / seconds[:, None]
        scale = np.sqrt(weights * trust)
        coefficients = non_negative_least_squares(rows * scale[:, None], scale)
        errors = np.abs(rows @ np.array(coefficients) - 1)
        deviation = max(1.4826 * float(np.median(errors)), 1e-6)  # of normal noise, from its median
        trust = np.minimum(1.0, HUBER * deviation / np.maximum(errors, 1e-12))
    return coefficients


def _design(loads: Matrix, *, prefill_larger: bool) -> Matrix:
    """What each coefficient is multiplied with, [n, 6]."""
    prefills, decodes = loads[:, 0] > 0, loads[:, 3] > 0
    rows = np.zeros((len(loads), 6))
    rows[:, 0] = prefills & (prefill_larger | ~decodes)
    rows[:, 1:3] = loads[:, 0:2]
    rows[:, 3] = decodes & (~prefills if prefill_larger else True)
    rows[:, 4:6] = loads[:, 2:4]
    return rows


def non_negative_least_squares(rows: Matrix, values: Matrix) -> list[float]:
    """Coefficients ≥ 0 for `rows @ coefficients ≈ values`: solve, drop the most negative column, repeat."""
    columns = list(range(rows.shape[1]))
    while columns:
        chosen: Matrix = rows[:, columns]
        scale: Matrix = np.maximum(np.abs(chosen).max(axis=0), 1e-12)  # Σn² is 10⁵ times the constant
        scaled = np.asarray(np.linalg.lstsq(chosen / scale, values, rcond=None)[0], dtype=np.float64)
        solution = scaled / scale
        if solution.min() >= 0:
            break
        columns.pop(int(scaled.argmin()))
    else:
        return [0.0] * rows.shape[1]
    result = [0.0] * rows.shape[1]
    for column, coefficient in zip(columns, solution, strict=True):
        result[column] = float(coefficient)
    return result
