"""Prints how well the cost model predicts iterations that it has not seen, by kind.

    OMP_WAIT_POLICY=passive python -m loadgen.cost_model_error [--set KEY=VALUE] [--iterations 60]

grid: fitted from the profiler's grid alone, as after the first start
on line: refitted while the iterations come in, each predicted before it is measured
mixed as a sum / as rows: other ways to predict a mixed iteration from the same coefficients, for comparison:
    both constants are paid / a decoding job costs what a prompt token does
"""

import argparse
import random
import time
from collections.abc import Callable, Iterator

import numpy as np

from services.profiler import grid
from services.profiler.accuracy import QUANTILES, quantile
from services.profiler.core import CostFitter, Kind, Measurement
from services.stage import checkpoint
from services.stage.runner import StageRunner
from shared.config import Config, override, parse
from shared.costmodel import BatchLoad, CostModel
from shared.ids import JobId, StepId
from shared.messages import Limits, Sampling, StepJob, StepPlan

REFIT_EVERY = 16
Jobs = list[tuple[int, int]]
"""(new tokens, context afterwards) of each job in an iteration."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--set", action="append", default=[], dest="assignments", metavar="KEY=VALUE")
    parser.add_argument("--iterations", type=int, default=60, help="of each kind")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    config = parse(override({}, options.assignments))
    stage = Stage(config)

    began = time.perf_counter()
    stage.run([(16, 16)])
    measured = [stage.run(jobs) for jobs in grid_iterations(config)]
    print(f"grid: {len(measured)} iterations, {time.perf_counter() - began:.1f} s")
    fitter = CostFitter(measured)
    first = model = fitter.fit()
    print(first, "\n")

    seen: list[tuple[Measurement, CostModel]] = []
    for number, jobs in enumerate(random_iterations(random.Random(options.seed), options.iterations), 1):
        measurement = stage.run(jobs)
        seen.append((measurement, model))
        fitter.add(measurement)
        if number % REFIT_EVERY == 0:
            model = fitter.fit()
    print(model, "\n")
    stage.close()

    heads = " | ".join(f"{kind.value} P{100 * fraction:.0f}, %" for kind in Kind for fraction in QUANTILES)
    print(f"| predicted by | {heads} |\n|---|" + "---|" * (len(Kind) * len(QUANTILES)))
    later = seen[len(seen) // 3 :]
    print_errors("grid", [(item, first.seconds(item.load)) for item, _ in seen])
    print_errors("on line", [(item, before.seconds(item.load)) for item, before in later])
    print_errors("on line, mixed as a sum", [(item, as_sum(before, item.load)) for item, before in later])
    print_errors("on line, mixed as rows", [(item, as_rows(before, item.load)) for item, before in later])
    print_errors("last fit, in sample", [(item, model.seconds(item.load)) for item, _ in seen])


class Stage:
    """All layers in this process, without the bus."""

    def __init__(self, config: Config) -> None:
        folder = checkpoint.resolve(config.model, lambda text, _: print(text))
        ignore: Callable[..., None] = lambda *_: None  # noqa: E731
        self._runner = StageRunner(config, 0, folder, on_transferred=ignore, on_copy_error=ignore)
        self._block_size = config.kv.block_size
        # Scattered over the pool, as after hours of service.
        self._blocks = np.random.default_rng(0).permutation(config.kv.device_blocks).astype("<i4")
        self.close = self._runner.close

    def run(self, jobs: Jobs) -> Measurement:
        parts: list[StepJob] = []
        used = 0
        for number, (new, context) in enumerate(jobs):
            count = -(-context // self._block_size)
            table = self._blocks[used : used + count].tobytes()
            used += count
            tokens = [1 + index % 64 for index in range(new)]
            parts.append(StepJob(JobId(number), tokens, context - new, table, Sampling(temperature=0.0)))
        plan = StepPlan(StepId(1), parts)
        return Measurement(plan.load(), self._runner.step(plan).seconds)


def grid_iterations(config: Config) -> Iterator[Jobs]:
    """What the scheduler makes of the grid: the first job of a group arrives alone, the others together."""
    capacity = config.kv.device_blocks * config.kv.block_size
    for group in grid.batches(config.profiler, Limits(capacity, capacity), ""):
        prompt, output = len(group[0].prompt), group[0].max_tokens
        yield [(prompt, prompt)]
        if len(group) > 1:
            yield [(prompt, prompt)] * (len(group) - 1) + [(1, prompt + 1)]
        for token in range(1, output):
            yield [(1, prompt + token)] * len(group)


def random_iterations(draw: random.Random, each: int) -> Iterator[Jobs]:
    """Prefill, decode and mixed iterations in turn, 1 to 16 jobs, prompts up to 600 tokens."""

    def prompts() -> Jobs:
        lengths = [round(draw.lognormvariate(4.3, 1.0)) for _ in range(draw.choice((1, 1, 1, 2, 3)))]
        return [(length, length) for length in (min(max(length, 4), 600) for length in lengths)]

    def decodes() -> Jobs:
        return [(1, draw.randint(10, 500)) for _ in range(draw.randint(1, 15))]

    for _ in range(each):
        yield prompts()
        yield decodes()
        yield prompts() + decodes()


def as_sum(model: CostModel, load: BatchLoad) -> float:
    mixed = Kind.of(load) is Kind.MIXED
    return model.seconds(load) + (min(model.prefill_a, model.decode_a) if mixed else 0.0)


def as_rows(model: CostModel, load: BatchLoad) -> float:
    mixed = Kind.of(load) is Kind.MIXED
    return model.seconds(load) + ((model.prefill_b - model.decode_c) * load.decode_jobs if mixed else 0.0)


def print_errors(name: str, predictions: list[tuple[Measurement, float]]) -> None:
    cells: list[str] = []
    for kind in Kind:
        errors = [abs(value / item.seconds - 1) for item, value in predictions if Kind.of(item.load) is kind]
        cells += [f"{100 * quantile(errors, fraction):.1f}" for fraction in QUANTILES]
    print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
