"""The highest rate under a latency, found by running: each step is a run of its own."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from loadgen.bench.campaign import Campaign
from loadgen.bench.measure import summarise
from loadgen.bench.record import Run
from loadgen.bench.settings import Benchmark
from loadgen.search import highest_rate
from shared.errors import ConfigError, SkipjoinError

TOLERANCE = 0.05
"""Of the rate: a live run tells no more."""

FAILED = 0.01
"""Share of requests that may fail; where more do, the server is overloaded, whatever the others saw."""

MOST_RUNS = 16


class Stopped(SkipjoinError):
    """Somebody ended the search."""


def find_rate(benchmark: Benchmark, out: Path, per_token_s: float, ended: Callable[[Run], None]) -> float:
    """Requests/s at which the mean latency per output token reaches `per_token_s`.

    Begins at the benchmark's first rate. Raises ConfigError where there is nothing to search.
    """
    if len(benchmark.targets) > 1 or benchmark.workload.trace is not None or benchmark.capacity is not None:
        raise ConfigError("--find-rate: needs one target, and neither a trace nor `capacity`")
    runs = 0

    def latency(rate: float) -> float:
        nonlocal runs
        runs += 1
        if runs > MOST_RUNS:
            raise ConfigError(f"--find-rate: not found in {MOST_RUNS} runs; begin nearer to it with --rate")
        seen: list[Run] = []
        step = msgspec.structs.replace(benchmark, rates=(rate,), repeats=1)
        if not Campaign(step, out / f"{runs:02}-{rate:.3g}", seen.append).run():
            raise Stopped("stopped; the runs so far are kept")
        ended(seen[0])
        summary = summarise(seen[0].records, benchmark.objective)
        if summary.completed < (1 - FAILED) * summary.requests:
            return float("inf")
        return summary.per_token.mean

    return highest_rate(latency, per_token_s, benchmark.points()[0].rate, TOLERANCE)
