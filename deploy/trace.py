"""`skipjoin trace`: what one request was in, from its arrival to its end."""

import argparse
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from deploy.connection import Connection, Refused, add_connection_arguments

_BAR = 40
"""Characters of the whole time."""

_STYLES = {
    "prefill": "green",
    "decode": "green",
    "recompute": "red",
    "swapping_out": "magenta",
    "swapping_in": "magenta",
    "on_host": "magenta",
    "queued": "yellow",
    "preempted": "yellow",
}


def register(commands: Any) -> None:
    command = commands.add_parser(
        "trace",
        help="print the timeline of a request",
        description="What a request was in from its arrival on, and which requests ran meanwhile. ID is its "
        "X-Request-Id or the id of its answer; also of those that have ended, as many as the gateway keeps.",
        epilog="example: skipjoin trace chatcmpl-0123456789abcdef --perfetto trace.json",
    )
    command.set_defaults(run=_run)
    command.add_argument("id", metavar="ID", help="of the request")
    command.add_argument(
        "--perfetto", type=Path, metavar="FILE", help="write it for ui.perfetto.dev instead of printing it"
    )
    add_connection_arguments(command)


def _run(options: argparse.Namespace) -> int:
    """Raises Refused."""
    connection, console = Connection(options), Console(markup=False, highlight=False)  # ids are no markup
    path = f"/v1/requests/{quote(options.id, safe='')}/timeline"
    if options.perfetto is None:
        console.print(timeline(connection.ask("GET", path)))
        return 0
    trace = connection.ask("GET", path + "?format=perfetto")
    try:
        options.perfetto.write_bytes(msgspec.json.encode(trace))
    except OSError as error:
        raise Refused(f"--perfetto {options.perfetto}: {error.strerror}") from None
    console.print(f"{options.perfetto}: open it at ui.perfetto.dev")
    return 0


def timeline(report: dict[str, Any]) -> Group:
    return Group(*(_choice(choice) for choice in report["choices"]))


def _choice(choice: dict[str, Any]) -> Table:
    name = choice["request_id"] + (f" #{choice['choice']}" if choice["choice"] else "")
    title = f"{name}: {choice['finish_reason'] or 'unfinished'} after {choice['total_s']:.3f} s"
    if choice["first_token_s"] is not None:
        title += f", first token after {choice['first_token_s']:.3f} s"
    title += f", tokens: {choice['prompt_tokens']} + {choice['output_tokens']}"
    table = Table("from, s", "s", "state", "queue", "", "why", title=title, title_justify="left")
    for segment in choice["segments"]:
        state = segment["state"]
        style = _STYLES.get(state, "")
        table.add_row(
            f"{segment['start_s']:.3f}",
            f"{segment['end_s'] - segment['start_s']:.3f}",
            Text(state.replace("_", " "), style),
            "–" if segment["level"] is None else f"Q{segment['level'] + 1}",
            Text(_bar(segment, choice["total_s"]), style),
            _why(segment),
        )
    if choice["trace_id"] is not None:
        table.caption, table.caption_justify = f"trace {choice['trace_id']}", "left"
    return table


def _bar(segment: dict[str, Any], total: float) -> str:
    """Where in the whole time the segment is."""
    scale = _BAR / total if total else 0.0
    start = min(_BAR - 1, int(segment["start_s"] * scale))
    end = max(start + 1, round(segment["end_s"] * scale))
    return " " * start + "█" * (min(end, _BAR) - start)


def _why(segment: dict[str, Any]) -> str:
    parts: list[str] = []
    if segment["iterations"]:
        parts.append(f"{segment['iterations']} iterations")
    if segment["reason"]:
        parts.append(segment["reason"])
    if segment["displaced_by"]:
        parts.append("ran meanwhile: " + ", ".join(segment["displaced_by"]))
    if segment["merged"] > 1:
        parts.append(f"{segment['merged']} segments in one")
    return "; ".join(parts)
