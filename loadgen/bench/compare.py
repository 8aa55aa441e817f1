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
Statistic = Callable[[Floats], float]


def _p95(values: Floats) -> float:
    return float(np.percentile(values, 95))


def _mean(values: Floats) -> float:
    return float(values.mean())


STATISTICS: dict[str, Statistic] = {"mean": _mean, "P95": _p95}


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
    """Runs of the same repeat; the others have nothing to be compared with."""
    others = {run.header.repeat: run for run in b}
    return [Pair(run.records, others[run.header.repeat].records) for run in a if run.header.repeat in others]


def ratios(pairs: Sequence[Pair], seed: int = 0) -> list[Ratio]:
    """Each metric of latency, mean and P95, over all requests and by class."""
    kinds = ["", *dict.fromkeys(record.kind for pair in pairs for record in pair.a)]
    kinds = kinds if len(kinds) > 2 else [""]
    found: list[Ratio] = []
    for metric, of in measure.METRICS.items():
        for kind in kinds:
            repeats = [blocks for pair in pairs if (blocks := _blocks(pair, kind, of))]
            for name, statistic in STATISTICS.items():
                found += _ratio(repeats, metric, name, statistic, kind, seed)
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


def _ratio(
    repeats: Sequence[Sequence[Floats]],
    metric: str,
    name: str,
    statistic: Statistic,
    kind: str,
    seed: int,
) -> list[Ratio]:
    if not repeats:
        return []
    values = np.concatenate([block for blocks in repeats for block in blocks], axis=1)
    a, b = statistic(values[0]), statistic(values[1])
    low = high = float("nan")
    if sum(map(len, repeats)) > 1:
        draw = np.random.default_rng(seed)
        drawn = np.empty(DRAWS)
        for number in range(DRAWS):
            sample = np.concatenate(list(_redrawn(repeats, draw)), axis=1)
            drawn[number] = statistic(sample[1]) / statistic(sample[0])
        low, high = np.percentile(drawn, (50 * (1 - LEVEL), 50 * (1 + LEVEL))).tolist()
    return [Ratio(metric, name, kind, a, b, b / a, low, high, values.shape[1])]


def _redrawn(repeats: Sequence[Sequence[Floats]], draw: np.random.Generator) -> Iterator[Floats]:
    for repeat in draw.integers(0, len(repeats), len(repeats)):
        blocks = repeats[repeat]
        for block in draw.integers(0, len(blocks), len(blocks)):
            yield blocks[block]


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
