"""All runs of a benchmark, in the order that keeps comparisons fair.

Servers that run anyway take turns at every rate: A B, B A, A B, … Configurations of our own take turns too,
but each start plays all rates, because a start takes half a minute: A: 0.5 0.7 …, B: 0.5 0.7 …, then B, A, …
Whatever drifts on the machine meanwhile (heat, neighbours) hits all of them alike. All targets see the same
requests at the same times.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import uvloop

from loadgen.bench.plan import file_name, plan, rate_of
from loadgen.bench.record import Run
from loadgen.bench.schedule import schedule
from loadgen.bench.settings import Benchmark, Target, to_yaml
from loadgen.bench.visit import Visit, visit
from loadgen.served import ServedApplication

START_S = 45.0
"""What a start of our own application takes, about; for the estimate only."""


class Stay(msgspec.Struct, frozen=True):
    """One start of, or connection to, a target; points: places in benchmark.points()"""

    repeat: int
    target: str
    points: tuple[int, ...]


def stays(benchmark: Benchmark) -> list[Stay]:
    """All of them, in order."""
    every = range(len(benchmark.points()))
    own = any(target.set is not None for target in benchmark.targets.values())
    groups = [tuple(every)] if own else [(point,) for point in every]
    found: list[Stay] = []
    turn = 0
    for repeat in range(benchmark.repeats):
        for points in groups:
            names = list(benchmark.targets)
            found += [Stay(repeat, name, points) for name in (names if turn % 2 == 0 else names[::-1])]
            turn += 1
    return found


def seconds(benchmark: Benchmark, capacity: float | None) -> float:
    """How long it will take, about. capacity: requests/s of every target, if it is known."""
    total = 0.0
    points = benchmark.points()
    for stay in stays(benchmark):
        total += START_S if benchmark.targets[stay.target].set is not None else 0.0
        for place in stay.points:
            rate = rate_of(benchmark, place, capacity)
            talks = schedule(benchmark, points[place], rate, benchmark.seed + stay.repeat)
            asks = sum(len(talk.asks) for talk in talks)
            arrivals = talks[-1].at
            bound = arrivals + benchmark.limits.drain_s
            total += min(bound, max(arrivals, asks / capacity if capacity else 0.0))
    return total


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"


class Campaign:
    """out: folder of the result files; ended: is told of each run"""

    def __init__(self, benchmark: Benchmark, out: Path, ended: Callable[[Run], None]) -> None:
        self._benchmark, self._out, self._ended = benchmark, out, ended
        self._capacity: float | None = None
        self._lone_s: float | None = None

    def run(self) -> bool:
        """Whether all of it was done. Raises SkipjoinError."""
        self._out.mkdir(parents=True, exist_ok=True)
        (self._out / "benchmark.yaml").write_text(to_yaml(self._benchmark))
        if self._benchmark.capacity is not None and not self._measure_capacity():
            return False
        estimate = seconds(self._benchmark, self._capacity)
        print(f"about {_span(estimate)}, results in {self._out}", file=sys.stderr)
        for stay in stays(self._benchmark):
            with started(self._benchmark.targets[stay.target]) as url:
                if not uvloop.run(self._stay(stay, url)):
                    return False
        return True

    def _measure_capacity(self) -> bool:
        wanted = self._benchmark.capacity
        assert wanted is not None
        name = wanted.target or next(iter(self._benchmark.targets))
        with started(self._benchmark.targets[name]) as url:
            return uvloop.run(self._saturate(name, url))

    async def _saturate(self, name: str, url: str) -> bool:
        wanted = self._benchmark.capacity
        assert wanted is not None
        async with visit(self._benchmark, name, url) as there:
            self._lone_s = await there.lone_iteration(wanted.lone)
            self._capacity = wanted.measured or await there.capacity(wanted.requests)
            alone = f"{1e3 * self._lone_s:.1f} ms a token alone"
            print(f"{name}: {alone}, capacity {self._capacity:.3g} requests/s", file=sys.stderr)
            return not there.stop.is_set()

    async def _stay(self, stay: Stay, url: str) -> bool:
        async with visit(self._benchmark, stay.target, url) as there:
            for place in stay.points:
                run = await self._one(there, stay, place)
                self._ended(run)
                if run.end.aborted:
                    return False
        return True

    async def _one(self, there: Visit, stay: Stay, place: int) -> Run:
        header, talks = plan(self._benchmark, stay.target, place, stay.repeat, self._capacity, self._lone_s)
        path = self._out / file_name(stay.target, place, stay.repeat)
        return await there.run(path, header, talks, place)


@contextlib.contextmanager
def started(target: Target) -> Iterator[str]:
    """The target's URL; our own application runs inside the context."""
    if target.url is not None:
        yield target.url.rstrip("/").removesuffix("/v1")
        return
    with ServedApplication(*(target.set or ())) as served:
        yield served.url
