"""Policies over load, burstiness and the shape of lengths, each run next to run to completion and to SRPT.

Load 1.0 is what fcfs sustains with these lengths at full batches (capacity.py). Every policy gets the same
requests, and every load the same gaps, stretched.
"""

from collections.abc import Iterable, Sequence

import msgspec

from loadgen.search import highest_rate
from loadgen.simulate.capacity import sustained
from loadgen.simulate.paper import SLO_S
from loadgen.simulate.results import per_token, summarise
from loadgen.simulate.scenario import Scenario
from loadgen.workload import lengths
from loadgen.workload.requests import synthetic

LOADS = (0.5, 0.7, 0.9, 1.0, 1.2)
CVS = (1.0, 2.0, 4.0, 8.0)
LENGTHS = ("sharegpt-lognormal", "uniform", "bimodal")
POLICIES = ("fcfs", "mlfq", "skip-join", "gittins", "srpt")
BASE, BOUND = "fcfs", "srpt"
"""What ratios are to, and what knows every output length beforehand."""

TOLERANCE = 0.02


class Cell(msgspec.Struct, frozen=True, order=True):
    """Where a policy was run. load: of what fcfs sustains; cv: of the gaps between arrivals"""

    lengths: str
    cv: float
    load: float
    policy: str


class Point(msgspec.Struct, frozen=True):
    """Means over the seeds, seconds. mean, p95, p99: latency per output token; jct: job completion time"""

    cell: Cell
    rate: float
    mean: float
    p95: float
    p99: float
    jct: float


class Limit(msgspec.Struct, frozen=True):
    """rate: the highest at which the mean meets SLO_S per token with Poisson arrivals, requests a second"""

    lengths: str
    policy: str
    rate: float


class Grid(msgspec.Struct, frozen=True):
    """What all points have in common; count: requests a run; starvation_s: alpha, None: by preset."""

    model: str
    count: int
    seeds: int
    starvation_s: float | None
    points: list[Point]
    limits: list[Limit]


class Study:
    """starvation_s: alpha, seconds; None: the preset's"""

    def __init__(self, scenario: Scenario, count: int, seeds: int, starvation_s: float | None) -> None:
        self._scenario = msgspec.structs.replace(scenario, starvation_s=starvation_s)
        self._count = count
        self._seeds = range(seeds)

    def empty(self) -> Grid:
        scenario = self._scenario
        return Grid(scenario.model.name, self._count, len(self._seeds), scenario.starvation_s, [], [])

    def point(self, cell: Cell) -> Point:
        """Raises ConfigError for lengths or a policy that do not exist."""
        rate = cell.load * self._capacity(cell.lengths)
        sampler, scenario = lengths.named(cell.lengths), self._with(cell.policy)
        figures: list[tuple[float, float, float, float]] = []
        for seed in self._seeds:
            summary = summarise(scenario.run(synthetic(sampler, self._count, rate, cell.cv, seed)), SLO_S)
            each = summary.latency_per_token
            figures.append((each.mean, each.p95, each.p99, summary.jct.mean))
        return Point(cell, rate, *(sum(column) / len(figures) for column in zip(*figures, strict=True)))

    def limit(self, name: str, policy: str) -> Limit:
        """Every rate is offered for as long as `count` requests take at the capacity: with a fixed number of
        requests instead, SRPT would meet the SLO even if all of them came at once.

        Raises ConfigError for lengths or a policy that do not exist.
        """

        def latency(rate: float) -> float:
            count = max(1, round(self._count * rate / capacity))
            runs = (scenario.run(synthetic(sampler, count, rate, 1.0, seed)) for seed in self._seeds)
            means = [float(per_token(outcome.records).mean()) for outcome in runs]
            return sum(means) / len(means)

        sampler, scenario, capacity = lengths.named(name), self._with(policy), self._capacity(name)
        return Limit(name, policy, highest_rate(latency, SLO_S, capacity, TOLERANCE))

    def _capacity(self, name: str) -> float:
        scenario = self._scenario
        stages = scenario.stages or scenario.model.stages
        return sustained(scenario.model, lengths.named(name), scenario.batch, stages, scenario.overhead_s)

    def _with(self, policy: str) -> Scenario:
        return msgspec.structs.replace(self._scenario, policy=policy)


def cells(
    names: Sequence[str], cvs: Sequence[float], loads: Sequence[float], policies: Sequence[str]
) -> list[Cell]:
    """Row by row; a row is what a policy's ratio to BASE is taken in."""
    return [
        Cell(name, cv, load, policy) for name in names for cv in cvs for load in loads for policy in policies
    ]


def ratio(point: Point, points: Iterable[Point]) -> float | None:
    """Mean latency over that of BASE in the same row; None if BASE was not run there."""
    base = msgspec.structs.replace(point.cell, policy=BASE)
    return next((point.mean / other.mean for other in points if other.cell == base), None)


def worst(policy: str, points: Sequence[Point]) -> tuple[float, Point] | None:
    """The row in which a policy does worst, with its ratio there."""
    rated = ((ratio(point, points), point) for point in points if point.cell.policy == policy)
    return max(
        ((value, point) for value, point in rated if value is not None),
        default=None,
        key=lambda pair: pair[0],
    )


def distance(limit: Limit, limits: Iterable[Limit]) -> float | None:
    """Highest rate over that of BOUND with the same lengths; None if BOUND's is not known."""
    bound = msgspec.structs.replace(limit, policy=BOUND, rate=0.0)
    return next(
        (limit.rate / other.rate for other in limits if msgspec.structs.replace(other, rate=0.0) == bound),
        None,
    )
