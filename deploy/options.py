"""What every command that reads a configuration takes: a file and overrides."""

import argparse
from pathlib import Path

from shared.config import Config, Tree, load_document, override, parse

DEFAULT_CONFIG = Path(__file__).with_name("local.yaml")


def add_config_arguments(command: argparse.ArgumentParser) -> None:
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


def load(options: argparse.Namespace) -> tuple[Config, dict[str, Tree]]:
    """The configuration, and Ray Serve options by deployment name.

    Raises ConfigError.
    """
    args, overrides = load_document(options.file)
    return parse(override(args, options.assignments)), overrides
