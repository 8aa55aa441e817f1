"""The sampling options of the commands that generate text."""

import argparse
from typing import Any

_FIELDS: tuple[tuple[str, type, str], ...] = (
    ("temperature", float, "0 is greedy (default: the server's, 1)"),
    ("top_p", float, "nucleus sampling"),
    ("top_k", int, "draw from the k likeliest tokens"),
    ("max_tokens", int, "longest answer, tokens"),
    ("seed", int, "same seed, same answer"),
    ("priority", int, "lower runs first (default 0)"),
    ("timeout", float, "seconds after which the server gives up"),
)


def add_sampling_arguments(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("sampling")
    for name, kind, text in _FIELDS:
        group.add_argument(f"--{name.replace('_', '-')}", dest=name, type=kind, metavar="N", help=text)
    group.add_argument("--stop", action="append", metavar="TEXT", help="ends the answer; may be repeated")


def sampling_fields(options: argparse.Namespace) -> dict[str, Any]:
    """Those of a request's body that were given."""
    fields = {name: getattr(options, name) for name, _, _ in _FIELDS} | {"stop": options.stop}
    return {name: value for name, value in fields.items() if value is not None}
