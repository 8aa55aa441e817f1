"""`skipjoin simulate`: the studies, as tables and as JSON."""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from loadgen.simulate import (
    ablation,
    bench_command,
    conversations_command,
    example,
    grid_command,
    paper,
    plots,
    profile,
    scale_command,
)
from loadgen.simulate.output import write
from loadgen.simulate.results import Spread, Summary, summarise
from loadgen.simulate.scenario import Scenario, swap_modes
from loadgen.workload import lengths, traces
from loadgen.workload.requests import Request, synthetic
from services.scheduler.policy import POLICIES
from shared.config import KVConfig, SchedulerConfig
from shared.errors import ConfigError, SkipjoinError

PLOTTED = ("paper", "ablation", "run", "grid")


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `simulate` and its studies; each parser's `run` takes the options and returns the exit status."""
    simulate = commands.add_parser("simulate", help="run the scheduler under a virtual clock")
    kinds = simulate.add_subparsers(dest="study", required=True, metavar="STUDY")
    for name, add, text in (
        ("example", _add_example, "the paper's three jobs under four policies"),
        ("paper", _add_paper, "the rate at 0.3 s per token, next to the published one"),
        ("ablation", _add_ablation, "one thing changed at a time"),
        ("run", _add_run, "one workload under one policy"),
        ("grid", grid_command.add, "policies over load, burstiness and lengths"),
        (
            "conversations",
            conversations_command.add,
            "turns that build on each other, with and without reuse",
        ),
        ("scale", scale_command.add, "very many requests over a fleet of replicas"),
        ("bench", bench_command.add, "what `skipjoin compare` would measure, from the same file"),
    ):
        parser = kinds.add_parser(name, help=text)
        parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result there")
        if name in PLOTTED:
            parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the result as a PNG")
        parser.set_defaults(run=partial(_guarded, add(parser)))


def _guarded(run: Callable[[argparse.Namespace], None], options: argparse.Namespace) -> int:
    try:
        if getattr(options, "plot", None) is not None:
            plots.require(options.plot)  # before minutes of simulation
        run(options)
    except SkipjoinError as error:
        print(f"skipjoin simulate: {error}", file=sys.stderr)
        return 2
    return 0


# ---------------------------------------------------------------- example


def _add_example(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], None]:
    return _example


def _example(options: argparse.Namespace) -> None:
    result = example.run()
    print("| policy | J1 / J2 / J3 | mean per token |\n|---|---|---|")
    for policy, values in result["policies"].items():
        completion = values["completion"]
        assert isinstance(completion, dict)
        print(f"| {policy} | {' / '.join(map(str, completion.values()))} | {values['mean_per_token']} |")
    write(options.json, result)


# ---------------------------------------------------------------- paper


def _add_paper(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], None]:
    parser.add_argument("--models", nargs="+", default=paper.MODELS, choices=paper.MODELS)
    parser.add_argument("--lengths", nargs="+", default=paper.LENGTHS, choices=sorted(lengths.NAMED))
    parser.add_argument("--policies", nargs="+", default=paper.SYSTEMS, choices=paper.SYSTEMS)
    parser.add_argument("--regimes", nargs="+", default=("finite", "steady"), choices=("finite", "steady"))
    parser.add_argument("--seeds", type=int, default=3, help="runs per rate of the finite regime")
    parser.add_argument("--starvation", type=float, metavar="S", help="alpha, seconds; default: the preset's")
    parser.add_argument("--preset", default=SchedulerConfig().preset)
    return _paper


def _paper(options: argparse.Namespace) -> None:
    print("| model | lengths | metric | policy | regime | req/s at 0.3 s per token | published | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    rows: list[paper.Row] = []
    for row in paper.rows(
        options.models, options.lengths, options.policies, options.regimes,
        options.seeds, options.starvation, options.preset,
    ):  # fmt: skip
        rows.append(row)
        published = "-" if row.anchor is None else f"{row.anchor:g} | {row.ratio:.2f}"
        print(
            f"| {row.model} | {row.lengths} | {row.metric} | {row.policy} | {row.regime} "
            f"| {row.rate_at_slo:.2f} | {published if row.anchor else '- | -'} |",
            flush=True,
        )
    write(options.json, {"rows": rows})
    if options.plot is not None:
        plots.paper(options.plot, rows)


# ---------------------------------------------------------------- ablation


def _add_ablation(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], None]:
    parser.add_argument("--n", type=int, default=400, help="requests per run")
    parser.add_argument("--seed", type=int, default=0)
    return _ablation


def _ablation(options: argparse.Namespace) -> None:
    columns = ("study", "value", "policy", "swap mode", "req/s", "mean s/token", "P95", "swap share",
               "recomputes", "TBT P99")  # fmt: skip
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    points: list[ablation.Point] = []
    for point in ablation.studies(options.n, options.seed):
        points.append(point)
        print("| " + " | ".join(map(str, msgspec.structs.astuple(point))) + " |", flush=True)
    write(options.json, {"points": points})
    if options.plot is not None:
        plots.ablation(options.plot, points)


# ---------------------------------------------------------------- run


def _add_run(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], None]:
    parser.add_argument("--policy", default="skip-join", help=", ".join(POLICIES))
    parser.add_argument("--model", default="opt-13b", help="a name, or a profile in a .json file")
    parser.add_argument("--lengths", default="sharegpt", help="a name, or constant:PROMPT:OUTPUT")
    parser.add_argument("--lengths-from", type=Path, metavar="FILE", help="rows of a trace or length table")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="arrivals and lengths of a real trace")
    parser.add_argument("--speed", type=float, default=1.0, help="play the trace this much faster")
    parser.add_argument("--rate", type=float, default=2.0, help="requests a second")
    parser.add_argument("--n", type=int, help="requests; default: 400, or the whole trace")
    parser.add_argument("--cv", type=float, default=1.0, help="of the gaps; 1 is Poisson")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stages", type=int)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--swap-mode", default=KVConfig().swap_mode, choices=swap_modes())
    parser.add_argument("--preset", default=SchedulerConfig().preset)
    parser.add_argument("--starvation", type=float, metavar="S", help="alpha, seconds; default: the preset's")
    parser.add_argument("--overhead", type=float, default=0.0, metavar="S", help="per iteration, seconds")
    parser.add_argument("--slo", type=float, default=paper.SLO_S, help="seconds per output token")
    return _run


def _run(options: argparse.Namespace) -> None:
    scenario = Scenario(
        profile.model(options.model), options.policy, options.preset, options.swap_mode, options.stages,
        options.batch, starvation_s=options.starvation, overhead_s=options.overhead,
    )  # fmt: skip
    requests = _requests(options)
    began = time.perf_counter()
    outcome = scenario.run(requests)
    wall = time.perf_counter() - began
    summary = summarise(outcome, options.slo)
    _print(summary)
    print(f"{outcome.iterations / wall * 60:,.0f} iterations a minute", file=sys.stderr)
    write(options.json, summary)
    if options.plot is not None:
        plots.run(options.plot, outcome.records, options.policy, options.slo)


def _requests(options: argparse.Namespace) -> list[Request]:
    """Raises ConfigError for a rate, speed or number that makes no load."""
    if options.rate <= 0 or options.speed <= 0 or options.cv < 0 or (options.n is not None and options.n < 1):
        raise ConfigError("--rate, --speed and --n must be positive, --cv not negative")
    if options.trace is not None:
        return traces.read(options.trace).at_speed(options.speed)[: options.n]
    sampler = lengths.named(options.lengths)
    if options.lengths_from is not None:
        sampler = partial(lengths.resampled, table=traces.read(options.lengths_from).lengths())
    return synthetic(sampler, options.n or 400, options.rate, options.cv, options.seed)


def _print(summary: Summary) -> None:
    print("| seconds | mean | P50 | P95 | P99 |\n|---|---|---|---|---|")
    for field in summary.__struct_fields__:
        value = getattr(summary, field)
        if isinstance(value, Spread):
            print(f"| {field} | {value.mean:.4g} | {value.p50:.4g} | {value.p95:.4g} | {value.p99:.4g} |")
    print()
    for field in summary.__struct_fields__:
        value = getattr(summary, field)
        if not isinstance(value, Spread):
            print(f"{field}: {value:.6g}")
