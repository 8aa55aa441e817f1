"""The `skipjoin` command."""

import argparse
import sys
from importlib.metadata import version

from deploy import chat, complete, keys, models, profile, requests, scale, top, trace
from deploy.connection import Refused
from deploy.options import add_config_arguments, load
from loadgen.bench import command as bench
from loadgen.report import command as report
from loadgen.simulate import command as simulate
from shared.config import to_yaml
from shared.errors import ConfigError


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except ConfigError as error:
        print(f"skipjoin: {error}", file=sys.stderr)
        return 2
    except Refused as error:
        print(f"skipjoin: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="skipjoin", description="LLM serving that lets no long answer block a short one."
    )
    parser.add_argument("--version", action="version", version=f"skipjoin {version('skipjoin')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="run the whole system on this machine",
        epilog="example: skipjoin serve --set kv.device_blocks=64 --set scheduler.policy=fcfs",
    )
    config = commands.add_parser(
        "config",
        help="print the effective configuration, or check it",
        epilog="example: skipjoin config --check deploy/cluster.yaml",
    )
    config.add_argument(
        "--check",
        action="store_true",
        help="say whether the file would run, and what where, without a cluster; status 1 if not",
    )
    for command, run in ((serve, _serve), (config, _config)):
        command.set_defaults(run=run)
        add_config_arguments(command)
    profile.register(commands)
    for each in (chat, complete, requests, top, trace, models, keys, scale):
        each.register(commands)
    simulate.register(commands)
    bench.register(commands)
    report.register(commands)
    return parser


def _serve(options: argparse.Namespace) -> int:
    from deploy.console import serve

    return serve(*load(options))


def _config(options: argparse.Namespace) -> int:
    if options.check:
        return _check(options)
    print(to_yaml(load(options)[0]), end="")
    return 0


def _check(options: argparse.Namespace) -> int:
    from deploy.check import check

    report = check(options.file, options.assignments)
    for line in report.summary:
        print(line)
    for note in report.notes:
        print(f"note: {note}")
    for error in report.errors:
        print(f"error: {error}", file=sys.stderr)
    return 1 if report.errors else 0


if __name__ == "__main__":
    sys.exit(main())
