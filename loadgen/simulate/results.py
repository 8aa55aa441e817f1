"""The figures of a run, in the paper's terms."""

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from loadgen.simulate.ledger import JobRecord
from loadgen.simulate.pipeline import Outcome

Floats = npt.NDArray[np.float64]


class Spread(msgspec.Struct, frozen=True):
    """Over jobs (or gaps between tokens), seconds."""

    mean: float
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: Floats) -> "Spread":
        if not len(values):
            return cls(0.0, 0.0, 0.0, 0.0)
        p50, p95, p99 = np.percentile(values, (50, 95, 99)).tolist()
        return cls(float(values.mean()), p50, p95, p99)


class Summary(msgspec.Struct, frozen=True):
    """Times in seconds.

    latency_per_token: FastServe's metric, latency ÷ output tokens
    jct: arrival to last token; ttft: arrival to first token; tbt: between two tokens of a job
    goodput: requests a second that met the SLO; slo_share: of all
    swap_share: stalls of a job's own iterations ÷ latency, summed over jobs
    stalled, blocked: seconds, see Outcome
    swapped_tokens: KV tokens copied either way
    """

    jobs: int
    refused: int
    latency_per_token: Spread
    jct: Spread
    ttft: Spread
    tbt: Spread
    slo_s: float
    slo_share: float
    goodput: float
    throughput: float
    swap_share: float
    stalled: float
    blocked: float
    swaps_out: int
    swaps_in: int
    swapped_tokens: int
    recomputes: int
    preemptions: int
    iterations: int
    seconds: float


def per_token(records: Sequence[JobRecord]) -> Floats:
    """Latency per output token of the jobs that were taken, seconds."""
    return np.array([record.latency_per_token for record in records if record.finished])


def steady(records: Sequence[JobRecord]) -> Sequence[JobRecord]:
    """The middle half: neither the filling of the system nor its draining."""
    quarter = len(records) // 4
    return records[quarter : len(records) - quarter]


def summarise(outcome: Outcome, slo_s: float) -> Summary:
    """slo_s: seconds per output token"""
    records = [record for record in outcome.records if record.finished]
    each = per_token(records)
    latencies = np.array([record.latency for record in records])
    gaps = [np.diff(record.token_times) for record in records]
    met = int((each <= slo_s).sum())
    first = min((record.arrival for record in records), default=0.0)
    span = max(outcome.seconds - first, 1e-9)
    swaps = {direction.value: count for direction, count in outcome.swaps.items()}
    return Summary(
        jobs=len(records),
        refused=len(outcome.records) - len(records),
        latency_per_token=Spread.of(each),
        jct=Spread.of(latencies),
        ttft=Spread.of(np.array([record.first_token for record in records])),
        tbt=Spread.of(np.concatenate(gaps) if gaps else np.empty(0)),
        slo_s=slo_s,
        slo_share=met / max(1, len(records)),
        goodput=met / span,
        throughput=len(records) / span,
        swap_share=sum(record.stalled for record in records) / max(1e-9, float(latencies.sum())),
        stalled=outcome.stalled,
        blocked=outcome.blocked,
        swaps_out=swaps["out"],
        swaps_in=swaps["in"],
        swapped_tokens=sum(outcome.swapped_tokens.values()),
        recomputes=sum(record.recomputes for record in records),
        preemptions=sum(record.preemptions for record in records),
        iterations=outcome.iterations,
        seconds=outcome.seconds,
    )
