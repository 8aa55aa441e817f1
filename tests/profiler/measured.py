"""Factories: loads, and a machine that takes exactly as long as a known model says, or nearly."""

import random
from collections.abc import Iterable, Iterator

from services.profiler.core import Measurement
from shared.costmodel import BatchLoad, CostModel

TRUE = CostModel(0.02, 1e-3, 2e-7, 0.03, 1e-6, 4e-3)


def load_of(*jobs: tuple[int, int]) -> BatchLoad:
    """From (new tokens, context afterwards) of each job."""
    return BatchLoad.of(jobs)


def grid_loads() -> list[BatchLoad]:
    loads = [load_of((n, n)) for n in (16, 64, 192, 700) for _ in range(2)]
    return loads + [load_of(*[(1, context)] * jobs) for jobs in (1, 4, 16) for context in (20, 900)]


def measured(loads: Iterable[BatchLoad], model: CostModel = TRUE) -> list[Measurement]:
    return [Measurement(load, model.seconds(load)) for load in loads]


def traffic(
    seed: int, count: int, model: CostModel = TRUE, *, noise: float = 0.05, outliers: float = 0.0
) -> Iterator[Measurement]:
    """Prefill, decode and mixed iterations in turn.

    noise: relative standard deviation; outliers: share of iterations that take 2 to 10 times as long
    """
    draw = random.Random(seed)
    for number in range(count):
        prompts = [(n, n) for n in [draw.randint(4, 600)]] if number % 3 != 1 else []
        decodes = [(1, draw.randint(10, 900)) for _ in range(draw.randint(1, 16))] if number % 3 else []
        load = load_of(*prompts, *decodes)
        factor = draw.uniform(2, 10) if draw.random() < outliers else max(0.5, draw.gauss(1, noise))
        yield Measurement(load, model.seconds(load) * factor)
