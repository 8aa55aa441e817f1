"""`skipjoin bench` and `skipjoin compare`."""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.errors import ConfigError, SkipjoinError

if TYPE_CHECKING:
    from loadgen.bench.record import Run
    from loadgen.bench.settings import Benchmark

INTERRUPTED = 130
"""Exit status, as shells have it."""


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add both; each parser's `run` takes the options and returns the exit status."""
    bench = commands.add_parser(
        "bench",
        help="open-loop load on an OpenAI-compatible server",
        epilog="example: skipjoin bench http://127.0.0.1:8000 --mix '80% 32:16, 20% 256:256' --rate 2",
    )
    bench.add_argument("url", nargs="?", help="of the server; not with --config")
    bench.add_argument("--model", help="default: the first that /v1/models names")
    bench.add_argument("--api", choices=("completions", "chat"), help="which endpoint (default: completions)")
    bench.add_argument("--tokenizer", help="its tokenizer.json; default: the server's /tokenize, else words")
    bench.add_argument(
        "--find-rate",
        type=float,
        metavar="S",
        help="search for the highest rate with a mean latency per output token of at most so many seconds",
    )
    bench.set_defaults(run=_guarded(_bench, "bench"))
    compare = commands.add_parser(
        "compare",
        help="the same load on several servers or configurations, taking turns",
        epilog="example: skipjoin compare --own skip-join: --own fcfs:scheduler.policy=fcfs --rate 0.5,1",
    )
    compare.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="NAME=URL",
        help="a server that runs, beside those of a --config; may be repeated",
    )
    compare.add_argument(
        "--own",
        action="append",
        default=[],
        metavar="NAME:KEY=VALUE,…",
        help="Skipjoin itself with these overrides, started here; the same",
    )
    compare.set_defaults(run=_guarded(_compare, "compare"))
    for command in (bench, compare):
        _add_load(command)


def _add_load(command: argparse.ArgumentParser) -> None:
    """What both take; an option that is given overrides the file."""
    command.add_argument(
        "--config", type=Path, metavar="FILE", help="the benchmark in YAML (loadgen/configs)"
    )
    command.add_argument("--out", type=Path, metavar="FOLDER", help="of the results (default: bench-TIME)")
    command.add_argument("--mix", help="classes and lengths, as in '80%% short=32:16, 20%% long=256:256'")
    command.add_argument("--trace", metavar="FILE", help="arrivals and lengths of a trace")
    command.add_argument("--speed", type=float, help="play the trace this much faster")
    command.add_argument("--conversations", metavar="FILE", help="a multi-turn table")
    command.add_argument("--think", type=float, metavar="S", help="mean pause before a next turn")
    command.add_argument("--tenants", help="shares of tenants, as in '70%% a, 30%% b'")
    command.add_argument("--rate", metavar="R,…", help="requests a second; several make several runs")
    command.add_argument("--requests", type=int, help="of each run")
    command.add_argument("--cv", type=float, help="of the gaps between arrivals; 1 is Poisson")
    command.add_argument("--repeats", type=int, help="of everything, each with another seed")
    command.add_argument("--seed", type=int)
    command.add_argument("--slo", metavar="ttft=S,tpot=S,per_token=S", help="what counts for goodput")
    command.add_argument("--concurrency", type=int, help="requests that are open at once")
    command.add_argument("--timeout", type=float, metavar="S", help="of one request")
    command.add_argument("--duration", type=float, metavar="S", help="no arrivals after this")
    command.add_argument("--drain", type=float, metavar="S", help="wait so long for the last answers")
    command.add_argument("--dry-run", action="store_true", help="print the whole benchmark as YAML, and end")


_PLACES = {
    "mix": ("workload", "mix"),
    "trace": ("workload", "trace"),
    "speed": ("workload", "speed"),
    "conversations": ("workload", "conversations"),
    "think": ("workload", "think_s"),
    "tenants": ("workload", "tenants"),
    "requests": ("requests",),
    "cv": ("cv",),
    "repeats": ("repeats",),
    "seed": ("seed",),
    "concurrency": ("limits", "concurrency"),
    "timeout": ("limits", "timeout_s"),
    "duration": ("limits", "duration_s"),
    "drain": ("limits", "drain_s"),
}
"""Where each option is in the file."""


def _guarded(run: Callable[[argparse.Namespace], int], name: str) -> Callable[[argparse.Namespace], int]:
    def guarded(options: argparse.Namespace) -> int:
        try:
            return run(options)
        except KeyboardInterrupt:
            print(f"skipjoin {name}: interrupted", file=sys.stderr)
            return INTERRUPTED
        except SkipjoinError as error:
            print(f"skipjoin {name}: {error}", file=sys.stderr)
            return 2

    return guarded


def _bench(options: argparse.Namespace) -> int:
    target = {key: getattr(options, key) for key in ("url", "model", "api", "tokenizer")}
    given = {key: value for key, value in target.items() if value is not None}
    if given and "url" not in given:
        raise ConfigError(f"--{next(iter(given))}: goes with a url; with --config it belongs into the file")
    benchmark = _benchmark(options, {"server": given} if given else {})
    if options.find_rate is None:
        return _play(options, benchmark)
    if options.find_rate <= 0:
        raise ConfigError("--find-rate: must be above 0")
    from loadgen.bench.search import find_rate

    rate = find_rate(benchmark, _out(options), options.find_rate, _Reporter(benchmark).ended)
    print(f"\n{rate:.3g} requests/s at a mean latency of {options.find_rate:g} s per output token")
    return 0


def _compare(options: argparse.Namespace) -> int:
    targets: dict[str, Any] = {}
    for text in options.target:
        name, separator, url = text.partition("=")
        if not separator:
            raise ConfigError(f"--target {text}: write it as NAME=URL")
        targets[name] = {"url": url}
    for text in options.own:
        name, separator, assignments = text.partition(":")
        if not separator:
            raise ConfigError(f"--own {text}: write it as NAME:KEY=VALUE,… (NAME: alone for the defaults)")
        targets[name] = {"set": [part for part in assignments.split(",") if part]}
    benchmark = _benchmark(options, targets, added=True)
    if len(benchmark.targets) < 2:
        raise ConfigError("targets: comparing needs two; give --target or --own twice, or a --config")
    return _play(options, benchmark)


def _benchmark(options: argparse.Namespace, targets: dict[str, Any], *, added: bool = False) -> "Benchmark":
    """The file's, with what the command line overrides. added: `targets` come beside the file's"""
    from loadgen.bench.settings import parse, read

    tree = read(options.config) if options.config is not None else {}
    if targets:
        tree["targets"] = {**((tree.get("targets") or {}) if added else {}), **targets}
    for option, path in _PLACES.items():
        value = getattr(options, option)
        if value is not None:
            *sections, leaf = path
            node = tree
            for section in sections:
                node = node.setdefault(section, {})
            node[leaf] = value
    if options.rate is not None:
        tree["rates"] = [_number(text, f"--rate {options.rate}") for text in options.rate.split(",")]
    if options.slo is not None:
        pairs = (text.partition("=") for text in options.slo.split(","))
        tree["objective"] = {key.strip(): _number(value, f"--slo {key}") for key, _, value in pairs}
    return parse(tree, str(options.config or "command line"))


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{where}: {text!r} is not a number") from None


def _out(options: argparse.Namespace) -> Path:
    return options.out or Path(time.strftime("bench-%Y%m%d-%H%M%S"))


def _play(options: argparse.Namespace, benchmark: "Benchmark") -> int:
    from loadgen.bench.campaign import Campaign
    from loadgen.bench.settings import to_yaml

    if options.dry_run:
        print(to_yaml(benchmark), end="")
        return 0
    out = _out(options)
    reporter = _Reporter(benchmark)
    done = Campaign(benchmark, out, reporter.ended).run()
    reporter.finish(out)
    return 0 if done else INTERRUPTED


class _Reporter:
    """Prints a row as each run ends, and at the end what `skipjoin report` prints."""

    def __init__(self, benchmark: "Benchmark") -> None:
        self._benchmark = benchmark

    def ended(self, run: "Run") -> None:
        from loadgen.bench.measure import summarise

        summary = summarise(run.records, self._benchmark.objective, run.header.lone_iteration_s)
        rate = "trace" if run.header.rate is None else f"{run.header.rate:.3g}/s"
        print(
            f"{run.header.target} {rate}: {summary.completed} of {summary.requests} requests, "
            f"{1e3 * summary.per_token.mean:.0f} ms per output token, TTFT {summary.ttft.mean:.2f} s, "
            f"{summary.output_rate:.1f} tokens/s",
            file=sys.stderr,
            flush=True,
        )

    def finish(self, out: Path) -> None:
        from loadgen.report.command import show

        show([out])
        print(f"\nskipjoin report {out} --html report.html draws it", file=sys.stderr)
