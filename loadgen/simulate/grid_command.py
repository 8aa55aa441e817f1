"""`skipjoin simulate grid`: the study, in parts if need be."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from loadgen.simulate import grid, plots, profile
from loadgen.simulate.output import write
from loadgen.simulate.scenario import Scenario
from loadgen.workload import lengths
from services.scheduler.policy import POLICIES
from shared.errors import ConfigError


def add(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], None]:
    parser.add_argument("--lengths", nargs="+", default=grid.LENGTHS, choices=sorted(lengths.NAMED))
    parser.add_argument("--cv", nargs="+", type=float, default=grid.CVS, help="of the gaps; 1 is Poisson")
    parser.add_argument("--loads", nargs="+", type=float, default=grid.LOADS, help="of what fcfs sustains")
    parser.add_argument("--policies", nargs="+", default=grid.POLICIES, choices=list(POLICIES))
    parser.add_argument("--n", type=int, default=400, help="requests per run")
    parser.add_argument("--seeds", type=int, default=2, help="runs per point")
    parser.add_argument("--model", default="opt-13b", help="a name, or a profile in a .json file")
    parser.add_argument("--starvation", type=float, metavar="S", help="alpha, seconds; default: the preset's")
    parser.add_argument("--no-limits", action="store_true", help="do not search the rate at the SLO")
    parser.add_argument(
        "--resume", action="store_true", help="keep what --json FILE has, and add what is missing"
    )
    return _run


def _run(options: argparse.Namespace) -> None:
    _check(options)
    study = grid.Study(Scenario(profile.model(options.model)), options.n, options.seeds, options.starvation)
    result = _kept(options.json, study.empty()) if options.resume else study.empty()
    print(_HEAD)
    for cell in grid.cells(options.lengths, options.cv, options.loads, options.policies):
        point = next((point for point in result.points if point.cell == cell), None)
        if point is None:
            point = study.point(cell)
            result.points.append(point)
            write(options.json, result)
        print(_row(point, grid.ratio(point, result.points)), flush=True)
    if not options.no_limits:
        known = {(limit.lengths, limit.policy) for limit in result.limits}
        for name in options.lengths:
            for policy in options.policies:
                if (name, policy) not in known:
                    result.limits.append(study.limit(name, policy))
                    write(options.json, result)
    _print_worst(result, options.policies)
    _print_limits(result)
    write(options.json, result)  # also when nothing was missing
    if options.plot is not None:
        plots.grid(options.plot, result)


def _check(options: argparse.Namespace) -> None:
    """Raises ConfigError for what makes no load or cannot be resumed."""
    for name in ("n", "seeds"):
        if getattr(options, name) < 1:
            raise ConfigError(f"--{name} {getattr(options, name)}: at least 1")
    for name, values in (("cv", options.cv), ("loads", options.loads)):
        for value in values:
            if value <= 0:
                raise ConfigError(f"--{name} {value}: must be positive")
    if options.resume and options.json is None:
        raise ConfigError("--resume needs --json FILE: what is kept is read from there")


def _kept(path: Path, empty: grid.Grid) -> grid.Grid:
    """What an earlier part wrote, or `empty` if there is no file.

    Raises ConfigError for a file that is no grid, or one of other settings.
    """
    if not path.exists():
        return empty
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=grid.Grid)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"--resume {path}: no grid ({error})") from None
    for name in ("model", "count", "seeds", "starvation_s"):
        old, new = getattr(kept, name), getattr(empty, name)
        if old != new:
            raise ConfigError(f"--resume {path}: {name} is {old} there and {new} now; write to another file")
    return kept


_HEAD = """\
| lengths | cv | load | policy | mean s/token | P95 | P99 | mean JCT, s | mean ÷ fcfs |
|---|---|---|---|---|---|---|---|---|"""


def _row(point: grid.Point, ratio: float | None) -> str:
    cell = point.cell
    return (
        f"| {cell.lengths} | {cell.cv:g} | {cell.load:g} | {cell.policy} | {point.mean:.4f} "
        f"| {point.p95:.4f} | {point.p99:.4f} | {point.jct:.2f} | {_number(ratio)} |"
    )


def _print_worst(result: grid.Grid, policies: Sequence[str]) -> None:
    print("\n| policy | worst mean ÷ fcfs | lengths | cv | load |\n|---|---|---|---|---|")
    for policy in policies:
        found = grid.worst(policy, result.points)
        if found is not None and policy != grid.BASE:
            value, cell = found[0], found[1].cell
            print(f"| {policy} | {value:.2f} | {cell.lengths} | {cell.cv:g} | {cell.load:g} |")


def _print_limits(result: grid.Grid) -> None:
    if not result.limits:
        return
    print("\n| lengths | policy | req/s at 0.3 s per token | ÷ srpt |\n|---|---|---|---|")
    for limit in result.limits:
        print(
            f"| {limit.lengths} | {limit.policy} | {limit.rate:.2f} "
            f"| {_number(grid.distance(limit, result.limits))} |"
        )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
