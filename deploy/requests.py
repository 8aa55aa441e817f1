"""`skipjoin requests`: what a running server is doing, why one of its requests waits, and an end to it."""

import argparse
import time
from typing import Any
from urllib.parse import quote

from rich.console import Console
from rich.live import Live
from rich.table import Table

from deploy.connection import Connection, add_connection_arguments

_COLUMNS = (
    "choice",
    "state",
    "queue",
    "runs in",
    "demoted",
    "promoted",
    "preempted",
    "recomputed",
    "seconds",
)


def register(commands: Any) -> None:
    command = commands.add_parser(
        "requests",
        help="list, explain and cancel requests",
        description="Without ID lists the unfinished requests. With ID, the "
        "X-Request-Id of a request or the id of its answer, says where it is and why it waits.",
        epilog="examples: skipjoin requests --watch 1; skipjoin requests chatcmpl-0123456789abcdef; "
        "skipjoin requests --cancel my-request",
    )
    command.set_defaults(run=_run)
    command.add_argument("id", nargs="?", metavar="ID", help="explain this one")
    command.add_argument("--cancel", metavar="ID", help="end this one: its client gets an error")
    command.add_argument("--watch", type=float, metavar="SECONDS", help="look again so often, until Ctrl-C")
    add_connection_arguments(command)


def _run(options: argparse.Namespace) -> int:
    """Raises Refused."""
    connection, console = Connection(options), Console(markup=False, highlight=False)  # ids are no markup
    if options.cancel is not None:
        connection.ask("DELETE", _path(options.cancel))
        console.print(f"cancelled {options.cancel}")
        return 0
    if options.watch is None:
        console.print(_look(connection, options.id))
        return 0
    try:
        with Live(_look(connection, options.id), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(options.watch)
                live.update(_look(connection, options.id), refresh=True)
    except KeyboardInterrupt:
        return 0


def _path(name: str) -> str:
    return f"/v1/requests/{quote(name, safe='')}"


def _look(connection: Connection, name: str | None) -> Table:
    if name is None:
        return listed(connection.ask("GET", "/v1/requests")["data"], time.time())
    return explained(connection.ask("GET", _path(name)))


def listed(requests: list[dict[str, Any]], now: float) -> Table:
    """now: seconds since 1970"""
    table = Table(title=f"{len(requests)} unfinished", title_justify="left")
    for name in ("request", "answer", "endpoint", "key"):
        table.add_column(name, overflow="fold")  # an id is to be copied whole
    for name in ("since, s", "prompt", "answered"):
        table.add_column(name, justify="right")
    for each in requests:
        numbers = (round(now) - each["created"], each["prompt_tokens"], each["completion_tokens"])
        names = (each["id"], each["answer_id"], each["endpoint"], each["key"] or "–")
        table.add_row(*names, *map(str, numbers))
    return table


def explained(report: dict[str, Any]) -> Table:
    title = f"{report['id']} ({'ended' if report['ended'] else 'unfinished'})"
    if report["prompt_tokens"] is not None:
        title += f", tokens: {report['prompt_tokens']} + {report['completion_tokens']}"
    table = Table(*_COLUMNS, title=title, title_justify="left")
    for job in report["choices"]:
        due = "–" if job["runs_in_s"] is None else f"{job['runs_in_s']:.3g} s"
        spent = ", ".join(f"{state} {seconds:.2f}" for state, seconds in job["seconds"].items())
        counts = (job[name] for name in ("demotions", "promotions", "preemptions", "recomputations"))
        table.add_row(str(job["index"]), job["state"], job["queue"] or "–", due, *map(str, counts), spent)
    reasons = [f"{job['index']}: {job['why']}" for job in report["choices"] if job["why"]]
    if reasons:
        table.caption, table.caption_justify = "\n".join(reasons), "left"
    return table
