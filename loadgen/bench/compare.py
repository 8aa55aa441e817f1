"""How two servers differ on the same requests, and how sure that is.

Latencies of neighbours in a queue are alike, so that single requests must not be drawn as if they were
independent: each run is cut into consecutive blocks of arrivals. And what happens on the machine meanwhile
differs from one repeat to the next by more than within one. So repeats are drawn, then blocks in them (both
servers' together, since both saw the same requests at the same times), and the ratio is taken anew, many
times over. With one repeat the interval knows nothing of the machine's drift.
"""

from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from loadgen.bench import measure
from loadgen.bench.record import OK, Record, Run
from loadgen.bench.settings import Objective

BLOCKS = 10
"""Per run."""

DRAWS = 2000
LEVEL = 0.95

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


class Mean:
    name = "mean"

    @staticmethod
    def of(values: Floats) -> float:
        return float(values.mean())

    @staticmethod
    def redrawn(values: Floats, block: Counts, times: Floats) -> Floats:
        """Of each draw. block: of each value; times: that each block was drawn, shape [draws, blocks]"""
        sizes = np.bincount(block, minlength=times.shape[1])
        return (times @ np.bincount(block, values, times.shape[1])) / (times @ sizes)


class P95:
    name = "P95"

    @staticmethod
    def of(values: Floats) -> float:
        return float(np.percentile(values, 95))

    @staticmethod
    def redrawn(values: Floats, block: Counts, times: Floats) -> Floats:
        order = np.argsort(values)
        below = np.cumsum(times[:, block[order]], axis=1)
        return values[order][(below >= 0.95 * below[:, -1:]).argmax(axis=1)]


STATISTICS = (Mean, P95)


class Ratio(msgspec.Struct, frozen=True):
    """b: what is compared; a: to what. low, high: of the ratio b ÷ a, NaN for fewer than two blocks
    requests: of each, those that both answered
    """

    metric: str
    statistic: str
    kind: str
    a: float
    b: float
    ratio: float
    low: float
    high: float
    requests: int


class Pair(msgspec.Struct, frozen=True):
    """The same requests on both: one repeat at one rate."""

    a: Sequence[Record]
    b: Sequence[Record]


def paired(a: Sequence[Run], b: Sequence[Run]) -> list[Pair]:
    """Runs of the same requests at the same times; the others have nothing to be compared with."""
    others = {_load(run): run for run in b}
    return [Pair(run.records, others[_load(run)].records) for run in a if _load(run) in others]


def _load(run: Run) -> tuple[int, int, float | None]:
    return run.header.repeat, run.header.seed, run.header.rate


def ratios(pairs: Sequence[Pair], seed: int = 0) -> list[Ratio]:
    """Each metric of latency, mean and P95, over all requests and by class."""
    kinds = ["", *dict.fromkeys(record.kind for pair in pairs for record in pair.a)]
    kinds = kinds if len(kinds) > 2 else [""]
    found: list[Ratio] = []
    for metric, of in measure.METRICS.items():
        for kind in kinds:
            repeats = [blocks for pair in pairs if (blocks := _blocks(pair, kind, of))]
            if repeats:
                found += _ratios(repeats, metric, kind, seed)
    return found


def _blocks(pair: Pair, kind: str, of: Callable[[Record], float]) -> list[Floats]:
    """Values of both, shape [2, requests], in up to BLOCKS consecutive parts."""
    other = {record.index: record for record in pair.b if record.outcome == OK}
    both = [
        (of(record), of(other[record.index]))
        for record in pair.a
        if record.outcome == OK and record.index in other and kind in ("", record.kind)
    ]
    parts = np.array_split(np.array(both).reshape(-1, 2).T, BLOCKS, axis=1)
    return [part for part in parts if part.shape[1]]


def _ratios(repeats: Sequence[Sequence[Floats]], metric: str, kind: str, seed: int) -> Iterator[Ratio]:
    blocks = [block for repeat in repeats for block in repeat]
    a, b = np.concatenate(blocks, axis=1)
    number = np.repeat(np.arange(len(blocks)), [block.shape[1] for block in blocks])
    times = _times_drawn([len(repeat) for repeat in repeats], np.random.default_rng(seed))
    for statistic in STATISTICS:
        low = high = float("nan")
        if len(blocks) > 1:
            drawn = statistic.redrawn(b, number, times) / statistic.redrawn(a, number, times)
            low, high = np.percentile(drawn, (50 * (1 - LEVEL), 50 * (1 + LEVEL))).tolist()
        of_a, of_b = statistic.of(a), statistic.of(b)
        yield Ratio(metric, statistic.name, kind, of_a, of_b, of_b / of_a, low, high, len(a))


def _times_drawn(sizes: Sequence[int], draw: np.random.Generator) -> Floats:
    """How often each block is in each draw, shape [DRAWS, blocks]. sizes: blocks of each repeat

    A repeat that was drawn k times has its blocks drawn k times over.
    """
    even = np.full(len(sizes), 1 / len(sizes))
    repeats = draw.multinomial(len(sizes), even, DRAWS)
    columns = [
        draw.multinomial(repeats[:, place] * size, np.full(size, 1 / size))
        for place, size in enumerate(sizes)
    ]
    return np.concatenate(columns, axis=1).astype(np.float64)


def throughput(a: Sequence[Run], b: Sequence[Run]) -> Ratio | None:
    """Output tokens per second; the interval is the span over repeats, NaN for one."""
    pairs = [
        (_output_rate(pair.a), _output_rate(pair.b))
        for pair in paired(a, b)
        if any(record.outcome == OK for record in pair.a) and any(record.outcome == OK for record in pair.b)
    ]
    if not pairs:
        return None
    each = [second / first for first, second in pairs]
    one, other = (float(np.mean(values)) for values in zip(*pairs, strict=True))
    span = (min(each), max(each)) if len(each) > 1 else (float("nan"), float("nan"))
    return Ratio("output tokens/s", "mean", "", one, other, other / one, *span, requests=len(pairs))


def _output_rate(records: Sequence[Record]) -> float:
    return measure.summarise(records, Objective()).output_rate
