"""The distribution of output lengths, learned from finished jobs, and the Gittins index that follows."""

from bisect import bisect_right
from collections import deque

import numpy as np
import numpy.typing as npt

KEPT = 1024
"""Finished jobs that a distribution remembers: load changes over a day."""

REFRESH_EVERY = 16
"""Finished jobs between two evaluations of the index; one takes about a millisecond."""

_BUCKETS = sorted({round(2 ** (step / 2)) for step in range(27)})
"""Attained output tokens at which the index is evaluated: two steps an octave, 1 to 8192."""


class LengthDistribution:
    """Output lengths of finished jobs, tokens.

    The Gittins index of a job with `attained` tokens is the smallest expected work per worth of what it
    completes, given L > attained: min over Δ of E[min(L - attained, Δ)] / E[w(L); L - attained ≤ Δ]. Serving
    the smallest first minimises the mean of w · time when only the distribution is known. A completion is
    worth w(L) = 1/L, scaled to a mean of 1: what is minimised is latency per output token.
    """

    def __init__(self) -> None:
        self._lengths: deque[int] = deque(maxlen=KEPT)
        self._since = 0
        self._sorted: npt.NDArray[np.float64] = np.empty(0)
        self._index: list[float] = []

    def __len__(self) -> int:
        return len(self._lengths)

    def add(self, tokens: int) -> None:
        self._lengths.append(tokens)
        self._since += 1
        if self._since >= REFRESH_EVERY or not self._index:
            self._since = 0
            self._sorted = np.sort(np.array(self._lengths, dtype=np.float64))
            self._index = [self._evaluate(float(attained)) for attained in _BUCKETS]

    def index(self, attained: int) -> float:
        """In tokens; infinite when the job has outlived all that were seen."""
        return self._index[max(0, bisect_right(_BUCKETS, attained) - 1)]

    def index_before_start(self, prefill: float) -> float:
        """Of a job that must first spend what costs as much as `prefill` output tokens."""
        return self._evaluate(0.0, prefill)

    def _evaluate(self, attained: float, first: float = 0.0) -> float:
        lengths = self._sorted[self._sorted > attained]
        left = lengths - attained
        count = len(left)
        if count == 0:
            return float("inf")
        finished = np.arange(1, count + 1)
        worth = np.cumsum(1 / lengths) / (1 / self._sorted).mean()
        # Stopping at Δ = left[k]: k + 1 jobs are done, the others have had Δ each.
        work = np.cumsum(left) + (count - finished) * left + first * count
        return float((work / worth).min())
