"""Times between tokens, counted: a million jobs have too many of them to keep."""

import math

import numpy as np

from loadgen.simulate.results import Spread

SHORTEST_S, LONGEST_S = 1e-5, 1e5
BINS_PER_E = 100
"""Bins are 1 % wide: quantiles are right to half of that."""

_OFFSET = -math.log(SHORTEST_S) * BINS_PER_E
_BINS = math.ceil(math.log(LONGEST_S / SHORTEST_S) * BINS_PER_E)


class GapHistogram:
    """Logarithmic bins from SHORTEST_S to LONGEST_S; what is outside counts to the outermost."""

    def __init__(self) -> None:
        self._counts = [0] * _BINS
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        self._sum += seconds
        bin_ = int(math.log(max(seconds, SHORTEST_S)) * BINS_PER_E + _OFFSET)
        self._counts[min(bin_, _BINS - 1)] += 1

    def spread(self, *others: "GapHistogram") -> Spread:
        """Of this one and the others together."""
        every = (self, *others)
        counts = np.sum([histogram._counts for histogram in every], axis=0)
        total = int(counts.sum())
        if not total:
            return Spread(0.0, 0.0, 0.0, 0.0)
        ranks = [share * total for share in (0.50, 0.95, 0.99)]
        bins = np.searchsorted(np.cumsum(counts), ranks)
        p50, p95, p99 = (SHORTEST_S * np.exp((bins + 0.5) / BINS_PER_E)).tolist()
        return Spread(sum(histogram._sum for histogram in every) / total, p50, p95, p99)
