"""`skipjoin models`: what a running server serves."""

import argparse
from typing import Any

from rich.console import Console
from rich.table import Table

from deploy.connection import Connection, add_connection_arguments


def register(commands: Any) -> None:
    command = commands.add_parser(
        "models",
        help="what a running server serves",
        epilog="example: skipjoin models --url http://127.0.0.1:9000",
    )
    command.set_defaults(run=_run)
    add_connection_arguments(command)


def _run(options: argparse.Namespace) -> int:
    """Raises Refused."""
    connection = Connection(options)
    table = Table()
    for name in ("model", "longest prompt + answer, tokens", "server"):
        table.add_column(name, overflow="fold")
    server = f"{connection.url}, skipjoin {connection.ask('GET', '/version')['version']}"
    for model in connection.ask("GET", "/v1/models")["data"]:
        table.add_row(model["id"], str(model["max_model_len"] or "–"), server)
    Console(markup=False, highlight=False).print(table)
    return 0
