"""The `skipjoin` command."""

import argparse
import sys
from importlib.metadata import version

from deploy import chat, complete, keys, models, profile, requests
from deploy.connection import Refused
from deploy.options import add_config_arguments, load
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
        help="print the effective configuration",
        epilog="example: skipjoin config deploy/local.yaml",
    )
    for command, run in ((serve, _serve), (config, _config)):
        command.set_defaults(run=run)
        add_config_arguments(command)
    profile.register(commands)
    for each in (chat, complete, requests, models, keys):
        each.register(commands)
    simulate.register(commands)
    return parser


def _serve(options: argparse.Namespace) -> int:
    from deploy.console import serve

    return serve(*load(options))


def _config(options: argparse.Namespace) -> int:
    print(to_yaml(load(options)[0]), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
