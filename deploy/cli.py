"""The `skipjoin` command."""

import argparse
import sys
from importlib.metadata import version
from pathlib import Path

from shared.config import Config, Tree, load_document, override, parse, to_yaml
from shared.errors import ConfigError

DEFAULT_CONFIG = Path(__file__).parent / "local.yaml"


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except ConfigError as error:
        print(f"skipjoin: {error}", file=sys.stderr)
        return 2


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
        command.add_argument(
            "file",
            nargs="?",
            type=Path,
            default=DEFAULT_CONFIG,
            metavar="CONFIG",
            help="a Ray Serve config file (default: deploy/local.yaml)",
        )
        command.add_argument(
            "--set",
            action="append",
            default=[],
            dest="assignments",
            metavar="KEY=VALUE",
            help="override one key of the configuration tree; may be repeated",
        )
    return parser


def _load(options: argparse.Namespace) -> tuple[Config, dict[str, Tree]]:
    args, overrides = load_document(options.file)
    return parse(override(args, options.assignments)), overrides


def _serve(options: argparse.Namespace) -> int:
    from deploy.console import serve

    return serve(*_load(options))


def _config(options: argparse.Namespace) -> int:
    print(to_yaml(_load(options)[0]), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
