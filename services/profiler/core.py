"""Fits the cost model to measured iterations.

prefill = a + b·Σn + c·Σn², decode = a + b·Σcontext + c·batch, all coefficients ≥ 0: an iteration never gets
cheaper by doing more. Mixed iterations are left out of the fit; the model predicts them from both halves.
"""

from collections import deque
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from shared.costmodel import GUESS, BatchLoad, CostModel

RECENT = 512
"""Iterations of each kind that a fit looks at beside those measured at start."""

Matrix = npt.NDArray[np.float64]

Sample = tuple[tuple[float, float], float]
"""The two load terms beside the constant, and the seconds."""


class CostFitter:
    """Collects (load, seconds) pairs and fits them.

    Relative errors are what scheduling feels, so every sample is weighted by 1 / seconds.
    """

    def __init__(self) -> None:
        self._first: dict[str, list[Sample]] = {"prefill": [], "decode": []}
        self._recent: dict[str, deque[Sample]] = {
            "prefill": deque(maxlen=RECENT),
            "decode": deque(maxlen=RECENT),
        }
        self.samples = 0

    def add(self, load: BatchLoad, seconds: float, *, keep: bool = False) -> None:
        """One iteration; `keep` marks those of the grid at start, which are never forgotten."""
        if seconds <= 0 or bool(load.prefill_tokens) == bool(load.decode_jobs):
            return
        if load.prefill_tokens:
            kind, terms = "prefill", (float(load.prefill_tokens), float(load.prefill_squares))
        else:
            kind, terms = "decode", (float(load.decode_context), float(load.decode_jobs))
        (self._first if keep else self._recent)[kind].append((terms, seconds))
        self.samples += 1

    def fit(self) -> CostModel:
        """The best model of what was measured; what was not measured keeps the guess."""
        prefill = self._fit("prefill", (GUESS.prefill_a, GUESS.prefill_b, GUESS.prefill_c))
        decode = self._fit("decode", (GUESS.decode_a, GUESS.decode_b, GUESS.decode_c))
        return CostModel(*prefill, *decode, samples=self.samples)

    def _fit(self, kind: str, guess: tuple[float, float, float]) -> tuple[float, float, float]:
        samples = [*self._first[kind], *self._recent[kind]]
        if not samples:
            return guess
        rows = np.array([[1.0, *terms] for terms, _ in samples])
        seconds = np.array([value for _, value in samples])
        a, b, c = non_negative_least_squares(rows / seconds[:, None], np.ones(len(samples)))
        return a, b, c

    def errors(self, model: CostModel) -> list[float]:
        """Relative error of `model` on each recent sample, sorted."""
        return sorted(self._relative_errors(model))

    def _relative_errors(self, model: CostModel) -> Iterable[float]:
        for (tokens, squares), seconds in self._recent["prefill"]:
            load = BatchLoad(prefill_tokens=int(tokens), prefill_squares=int(squares))
            yield abs(model.seconds(load) / seconds - 1)
        for (context, jobs), seconds in self._recent["decode"]:
            load = BatchLoad(decode_context=int(context), decode_jobs=int(jobs))
            yield abs(model.seconds(load) / seconds - 1)


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
