"""`skipjoin simulate scale`: a million requests over a fleet."""

import argparse
import sys
import time
from collections.abc import Callable

from loadgen.simulate import fleet, profile
from loadgen.simulate.capacity import sustained
from loadgen.simulate.output import write
from loadgen.simulate.results import Spread
from loadgen.simulate.scenario import Scenario
from loadgen.workload import lengths
from loadgen.workload.requests import stream
from services.scheduler.policy import POLICIES
from shared.errors import ConfigError

LOAD = 0.8
"""Of what the replicas sustain, if no rate is asked for."""

PROGRESS_S = 10.0


def add(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], None]:
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument(
        "--rate", type=float, help=f"requests a second, whole fleet; default: {LOAD} of capacity"
    )
    parser.add_argument("--policy", default="skip-join", help=", ".join(POLICIES))
    parser.add_argument("--model", default="opt-13b", help="a name, or a profile in a .json file")
    parser.add_argument("--lengths", default="alpaca", help="a name, or constant:PROMPT:OUTPUT")
    parser.add_argument("--cv", type=float, default=1.0, help="of the gaps; 1 is Poisson")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stages", type=int, help="of each replica; default: the model's")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--starvation", type=float, metavar="S", help="alpha, seconds; default: the preset's")
    return _run


def _run(options: argparse.Namespace) -> None:
    _check(options)
    scenario = Scenario(
        profile.model(options.model), options.policy, stages=options.stages, batch=options.batch,
        starvation_s=options.starvation,
    )  # fmt: skip
    stages = scenario.config().parallel.pipeline_stages
    sampler = lengths.named(options.lengths)
    capacity = options.replicas * sustained(scenario.model, sampler, options.batch, stages)
    rate = LOAD * capacity if options.rate is None else options.rate
    print(
        f"{options.requests:,} requests at {rate:.1f}/s, {100 * rate / capacity:.0f} % of what "
        f"{options.replicas} replicas sustain",
        file=sys.stderr,
    )
    requests = stream(sampler, options.requests, rate, options.cv, options.seed)
    report = fleet.run(scenario, requests, options.replicas, _progress(options.requests))
    _print(report)
    write(options.json, {"rate": rate, "capacity": capacity, "policy": options.policy, "report": report})


def _check(options: argparse.Namespace) -> None:
    """Raises ConfigError for what makes no load or no fleet."""
    for name in ("requests", "replicas", "batch", "stages"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name} {value}: at least 1")
    if options.rate is not None and options.rate <= 0:
        raise ConfigError(f"--rate {options.rate}: must be positive")
    if options.cv < 0:
        raise ConfigError(f"--cv {options.cv}: must not be negative")


def _progress(total: int) -> fleet.Progress:
    """A line to stderr every PROGRESS_S seconds."""
    began = last = time.perf_counter()

    def report(routed: int, iterations: int) -> None:
        nonlocal last
        now = time.perf_counter()
        if now - last < PROGRESS_S:
            return
        last, passed = now, now - began
        print(
            f"{routed:,} of {total:,} requests, {60 * iterations / passed:,.0f} iterations a minute, "
            f"{passed * (total / routed - 1):.0f} s left",
            file=sys.stderr,
        )

    return report


def _print(report: fleet.FleetReport) -> None:
    fields = {name: getattr(report, name) for name in report.__struct_fields__}
    print("| seconds, all jobs | mean | P50 | P95 | P99 |\n|---|---|---|---|---|")
    for name, value in fields.items():
        if isinstance(value, Spread):
            print(f"| {name} | {value.mean:.4g} | {value.p50:.4g} | {value.p95:.4g} | {value.p99:.4g} |")
    print("\n| over replicas | least | mean | most |\n|---|---|---|---|")
    for name, value in fields.items():
        if isinstance(value, fleet.Balance):
            print(f"| {name} | {value.least:.4g} | {value.mean:.4g} | {value.most:.4g} |")
    print()
    for name, value in fields.items():
        if isinstance(value, int | float):
            print(f"{name}: {value:,}" if isinstance(value, int) else f"{name}: {value:,.2f}")
