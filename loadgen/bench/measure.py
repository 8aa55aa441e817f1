"""The figures of a run. Pure: records in, numbers out.

Latencies count from when a request was due. A request that failed has none, but counts as one that missed its
objective; one that was cut off because somebody stopped the run counts nowhere.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from loadgen.bench.record import ABORTED, OK, Record
from loadgen.bench.settings import Objective

Floats = npt.NDArray[np.float64]


class Spread(msgspec.Struct, frozen=True):
    """Seconds; NaN where there is nothing to measure."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    p999: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        array = np.fromiter(values, dtype=np.float64)
        if not len(array):
            return cls(0, *[float("nan")] * 5)
        return cls(len(array), float(array.mean()), *np.percentile(array, (50, 95, 99, 99.9)).tolist())


class Summary(msgspec.Struct, frozen=True):
    """failures: requests by what went wrong
    ttft: due to first chunk; jct: due to last chunk; per_token: jct ÷ output tokens (FastServe's metric)
    tbt: between two chunks of an answer, which is what its reader sees: a chunk of several tokens is one gap,
        neither divided among them nor filled up with zeros; tokens_per_chunk says whether there are such
    tpot: (last chunk - first chunk) ÷ tokens after the first chunk
    throughput: completed requests/s, and output_rate tokens/s, from the first arrival to the last answer
    goodput: requests/s that met the objective; met: their share of all, failures included
    fairness: the tenants' largest mean per_token over the smallest; None with less than two
    late_p99: seconds from when requests were due until they were sent, by the client's fault or its bound
    prompt_errors, output_errors: requests whose length was not what the workload wanted
    guessed: requests whose output tokens are a guess, because the server does not tell
    """

    requests: int
    completed: int
    failures: dict[str, int]
    ttft: Spread
    tbt: Spread
    tpot: Spread
    jct: Spread
    per_token: Spread
    tokens_per_chunk: float
    throughput: float
    output_rate: float
    goodput: float
    met: float
    fairness: float | None
    late_p99: float
    prompt_errors: int
    output_errors: int
    guessed: int
    seconds: float


def ttft(record: Record) -> float:
    return (record.first or 0.0) - record.scheduled


def jct(record: Record) -> float:
    return (record.end or 0.0) - record.scheduled


def per_token(record: Record) -> float:
    return jct(record) / max(1, record.output or 0)


def gaps(record: Record) -> list[float]:
    return np.diff(record.arrivals).tolist()


def tpot(record: Record) -> float | None:
    """None for an answer of one chunk: nothing was waited for."""
    if len(record.arrivals) < 2:
        return None
    first = record.chunk_tokens[0] if record.chunk_tokens else 1
    return (record.arrivals[-1] - record.arrivals[0]) / max(1, (record.output or 0) - first)


METRICS: dict[str, Callable[[Record], float]] = {"ttft": ttft, "jct": jct, "per_token": per_token}
"""One figure per completed request."""


def completed(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record.outcome == OK]


def meets(record: Record, objective: Objective, lone_iteration_s: float | None) -> bool:
    """lone_iteration_s: what objective.per_token_iterations counts in"""
    if record.outcome != OK:
        return False
    limit = per_token_limit(objective, lone_iteration_s)
    each = tpot(record)
    return (
        (objective.ttft is None or ttft(record) <= objective.ttft)
        and (objective.tpot is None or each is None or each <= objective.tpot)
        and (limit is None or per_token(record) <= limit)
    )


def per_token_limit(objective: Objective, lone_iteration_s: float | None) -> float | None:
    """The stricter of the two, seconds."""
    limits = [] if objective.per_token is None else [objective.per_token]
    if objective.per_token_iterations is not None and lone_iteration_s is not None:
        limits.append(objective.per_token_iterations * lone_iteration_s)
    return min(limits, default=None)


def summarise(
    records: Sequence[Record], objective: Objective, lone_iteration_s: float | None = None
) -> Summary:
    counted = [record for record in records if record.outcome != ABORTED]
    done = completed(counted)
    begin = min((record.scheduled for record in counted), default=0.0)
    seconds = max((record.end or record.scheduled for record in counted), default=0.0) - begin
    span = seconds or float("nan")
    met = sum(meets(record, objective, lone_iteration_s) for record in counted)
    chunks = sum(len(record.arrivals) for record in done)
    tokens = sum(record.output or 0 for record in done)
    late = [record.sent - record.scheduled for record in counted if record.sent is not None]
    return Summary(
        requests=len(counted),
        completed=len(done),
        failures=dict(Counter(record.outcome for record in counted if record.outcome != OK)),
        ttft=Spread.of(map(ttft, done)),
        tbt=Spread.of(gap for record in done for gap in gaps(record)),
        tpot=Spread.of(value for value in map(tpot, done) if value is not None),
        jct=Spread.of(map(jct, done)),
        per_token=Spread.of(map(per_token, done)),
        tokens_per_chunk=tokens / chunks if chunks else float("nan"),
        throughput=len(done) / span,
        output_rate=tokens / span,
        goodput=met / span,
        met=met / len(counted) if counted else float("nan"),
        fairness=_fairness(done),
        late_p99=Spread.of(late).p99,
        prompt_errors=sum(
            record.turn == 0 and record.prompt not in (None, record.asked_prompt) for record in done
        ),
        output_errors=sum(record.output != record.asked_output for record in done),
        guessed=sum(record.counted_by == "chunks" for record in done),
        seconds=seconds,
    )


def _fairness(done: Sequence[Record]) -> float | None:
    tenants: dict[str, list[float]] = {}
    for record in done:
        tenants.setdefault(record.tenant, []).append(per_token(record))
    means = [float(np.mean(values)) for values in tenants.values()]
    return max(means) / min(means) if len(means) > 1 else None


def by_kind(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Records of each class, in the order of their first appearance; empty if all are of one."""
    kinds: dict[str, list[Record]] = {}
    for record in records:
        kinds.setdefault(record.kind, []).append(record)
    return kinds if len(kinds) > 1 else {}


def capacity(records: Sequence[Record]) -> float:
    """Requests a second that a server completes, from a run of which all requests were due at once: requests
    over time, up to when nine tenths of the output tokens have arrived. The rest comes from batches that are
    no longer full.
    """
    done = completed(records)
    if not done:
        return float("nan")
    times = np.concatenate([np.asarray(record.arrivals) for record in done])
    weights = np.concatenate(
        [np.full(len(record.arrivals), (record.output or 0) / len(record.arrivals)) for record in done]
    )
    order = np.argsort(times)
    share = np.cumsum(weights[order]) / weights.sum()
    until = times[order][np.searchsorted(share, 0.9)] - min(record.scheduled for record in done)
    return float(0.9 * len(done) / until)
