"""`skipjoin scale`: add and remove pipelines of an application that runs."""

import argparse
import sys
import time
from typing import Any

from deploy.connection import Connection, Refused, add_connection_arguments

PATH = "/v1/pipelines"
_EVERY_S = 0.5


def register(commands: Any) -> None:
    command = commands.add_parser(
        "scale",
        help="have so many pipelines behind the gateways of a running server",
        epilog="example: skipjoin scale 2 --url http://127.0.0.1:9000",
    )
    command.set_defaults(run=run)
    command.add_argument("replicas", type=int, metavar="N")
    command.add_argument(
        "--timeout", type=float, default=600.0, help="seconds until all are there (default: %(default)s)"
    )
    add_connection_arguments(command)


def run(options: argparse.Namespace) -> int:
    """Returns 0 once as many pipelines serve and no others are left. Raises Refused."""
    connection = Connection(options)
    deadline = time.monotonic() + options.timeout
    pipelines = connection.ask("POST", PATH, {"replicas": options.replicas})["data"]
    shown: set[str] = set()
    while True:
        for line in map(_line, pipelines):
            if line not in shown:
                sys.stderr.write(line + "\n")
                shown.add(line)
        serving = sum(each["serving"] for each in pipelines)
        if serving == len(pipelines) == options.replicas:
            sys.stdout.write(f"{serving} pipelines serve\n")
            return 0
        if time.monotonic() > deadline:
            raise Refused(
                f"--timeout: {serving} of {options.replicas} pipelines serve after {options.timeout:g} s; "
                "the server goes on with it (GET /v1/pipelines)"
            )
        time.sleep(_EVERY_S)
        pipelines = connection.ask("GET", PATH)["data"]


def _line(pipeline: dict[str, Any]) -> str:
    return f"  pipeline {pipeline['pipeline']:<3} {pipeline['reason'] or 'serves'}"
