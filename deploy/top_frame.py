"""One frame of `skipjoin top`, out of a snapshot of `/v1/board`."""

import re
import time
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

_STYLES = {"running": "green", "preempted": "yellow", "waiting": "blue"}
_MARKS = {"running": "■", "preempted": "◪", "waiting": "□"}
_BLOCKS = {"held": ("█", "blue"), "moving": ("▒", "yellow"), "cached": ("░", "cyan")}
_BAR = 30
_LEAST_QUEUES = 4
_NAMES = 60
"""Columns beside the marks of a queue."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def frame(
    board: dict[str, Any], url: str, width: int, height: int | None = None, *, lost: str = ""
) -> RenderableType:
    """height: lines of the terminal, None if there is no end of them; lost: why it is not live"""
    if not board:
        return Text(lost)
    head = Text(f"skipjoin {url}  {time.strftime('%H:%M:%S', time.localtime(board['at']))}")
    head.append(f"  {lost}" if lost else "  live", style="red" if lost else "green")
    if height is not None:
        head.append("  q leaves", style="dim")
    several = len(board["pipelines"]) > 1
    room = None if height is None else max(_LEAST_QUEUES, height // len(board["pipelines"]) - 9)
    parts = [_pipeline(each, width, room, several=several) for each in board["pipelines"]]
    return Group(head, *parts)


def _pipeline(board: dict[str, Any], width: int, room: int | None, *, several: bool) -> RenderableType:
    name = f"pipeline {board['pipeline']}: " if several else ""
    if not board["serving"] or board["policy"] is None:
        reason = board["reason"] or "its scheduler does not answer"
        return Text(f"\n{name}does not serve: {_plain(reason)}", style="red")
    return Group(
        Text(f"\n{name}{board['policy']}, {_figures(board)}"),
        Text(_latencies(board), style="dim"),
        _bars(board),
        _queues(board["queues"], width, room),
    )


def _figures(board: dict[str, Any]) -> str:
    unfinished = sum(_jobs(queue) for queue in board["queues"])
    batch = f"batch {_number(board['mean_batch'])} of {board['batch_limit']}"
    return (
        f"{_number(board['tokens_per_s'])} tokens/s, {_number(board['jobs_per_s'])} answers/s, {batch}, "
        f"{len(board['batches'])} in flight, {unfinished} unfinished"
    )


def _latencies(board: dict[str, Any]) -> str:
    parts = [
        f"{name} {_seconds(latency['p50_s'])}, {_seconds(latency['p95_s'])}"
        for name, latency in (
            ("first token", board["first_token"]),
            ("between tokens", board["between_tokens"]),
        )
    ]
    return "last minute P50, P95: " + "; ".join(parts)


def _bars(board: dict[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2))
    for tier in board["kv"]:
        bar = Text()
        for part, (mark, style) in _BLOCKS.items():
            bar.append(mark * round(_BAR * tier[part] / (tier["total"] or 1)), style=style)
        counts = ", ".join(f"{tier[part]} {part}" for part in _BLOCKS)
        table.add_row(f"KV {tier['tier']}", _filled(bar), f"{counts} of {tier['total']}")
    for stage, share in enumerate(board["utilisation"]):
        bar = Text("█" * round(_BAR * (share or 0.0)), style="green")
        table.add_row(f"stage {stage}", _filled(bar), "–" if share is None else f"{share:.0%} busy")
    return table


def _filled(bar: Text) -> Text:
    bar.truncate(_BAR)
    bar.append("·" * (_BAR - len(bar)), style="dim")
    return bar


def _queues(queues: list[dict[str, Any]], width: int, room: int | None) -> RenderableType:
    last = max((index for index, queue in enumerate(queues) if _jobs(queue)), default=-1)
    shown = queues[: max(_LEAST_QUEUES, last + 1)]
    hidden = shown[room:] if room is not None else []
    table = Table.grid(padding=(0, 2))
    for queue in shown[:room]:
        counts = ", ".join(f"{queue[state]} {state}" for state in _STYLES if queue[state]) or "empty"
        marks = _marks(queue, max(8, width - _NAMES))
        table.add_row(queue["queue"], _seconds(queue["quantum_s"]), marks, Text(counts, style="dim"))
    if not hidden:
        return table
    more = f"and {sum(map(_jobs, hidden))} jobs in {hidden[0]['queue']} to {hidden[-1]['queue']}"
    return Group(table, Text(more, style="dim"))


def _marks(queue: dict[str, Any], room: int) -> Text:
    """A mark for each job that has room, and how many there are besides."""
    more = _jobs(queue) - min(len(queue["jobs"]), room)
    marks = Text()
    for job in queue["jobs"][: room - len(f" +{more}") if more else room]:
        marks.append(_MARKS[job["state"]], style=_STYLES[job["state"]])
    hidden = _jobs(queue) - len(marks)
    if hidden:
        marks.append(f" +{hidden}", style="dim")
    return marks


def _jobs(queue: dict[str, Any]) -> int:
    return queue["waiting"] + queue["running"] + queue["preempted"]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def _plain(text: str) -> str:
    return _CONTROL.sub("\ufffd", text)
