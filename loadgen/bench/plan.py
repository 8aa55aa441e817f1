"""One run of a benchmark, as it is described, named and scheduled: live and simulated alike."""

import msgspec

from loadgen.bench.record import Header
from loadgen.bench.schedule import Talk, schedule
from loadgen.bench.settings import Benchmark


def rate_of(benchmark: Benchmark, place: int, capacity: float | None) -> float:
    """Of arrivals at the rate of this place in benchmark.points(), per second. capacity: requests/s"""
    rate = benchmark.points()[place].rate
    return rate * (capacity or 1.0) if benchmark.capacity is not None else rate


def plan(
    benchmark: Benchmark,
    target: str,
    place: int,
    repeat: int,
    capacity: float | None,
    lone_iteration_s: float | None,
) -> tuple[Header, list[Talk]]:
    """What its result file begins with, but for what is found out at the target; and what is asked.

    Raises ConfigError as `schedule` does.
    """
    point = benchmark.points()[place]
    rate, seed = rate_of(benchmark, place, capacity), benchmark.seed + repeat
    header = Header(
        target=target,
        rate=None if benchmark.workload.trace is not None else rate,
        load=None if capacity is None else point.rate,
        repeat=repeat,
        seed=seed,
        benchmark=msgspec.to_builtins(benchmark),
        server={},
        machine={},
        when="",
        capacity=capacity,
        lone_iteration_s=lone_iteration_s,
    )
    return header, schedule(benchmark, point, rate, seed)


def file_name(target: str, place: int, repeat: int) -> str:
    return f"{target}-{place}-{repeat}.jsonl"
