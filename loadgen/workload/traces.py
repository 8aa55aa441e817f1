"""Readers of request traces and length tables: CSV and JSONL, whatever their columns are called.

Azure           TIMESTAMP,ContextTokens,GeneratedTokens       2023-11-16 18:15:46.6805900; 2024 adds +00:00
Azure, relative timestamp_s,input_len,output_len              seconds
Mooncake        {"timestamp": 27482, "input_length": 6955, "output_length": 52, ...}   milliseconds
BurstGPT        Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type   seconds; a failure has
                an empty answer, and newer releases have further columns
ShareGPT        input_len,output_len  or  conv_id,turn,context_len,new_prompt_len,output_len
"""

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from loadgen.workload.lengths import Lengths
from loadgen.workload.requests import Request, Turn
from shared.errors import SkipjoinError

TIMES = {"timestamp_s": 1.0, "arrival_s": 1.0, "timestamp": 1e-3, "timestamp_ms": 1e-3}
"""Names of the arrival column and the seconds in its unit; a bare `timestamp` may also be a date."""

BURSTGPT_PROMPT = "request tokens"
"""Beside this column a bare `timestamp` counts seconds."""

PROMPTS = ("input_len", "input_length", "contexttokens", "prompt_len", "context_len", BURSTGPT_PROMPT)
"""`context_len` of a multi-turn table is the whole prompt, the earlier turns included."""

OUTPUTS = ("output_len", "output_length", "generatedtokens", "response tokens")


class TraceError(SkipjoinError):
    """A trace cannot be read; the message starts with file and line."""


class Trace(msgspec.Struct, frozen=True):
    """requests: by arrival, the first at 0
    skipped: rows with an empty prompt or answer, which no job can have
    """

    requests: list[Request]
    skipped: int

    def lengths(self) -> Lengths:
        return np.array([(item.prompt, item.output) for item in self.requests], dtype=np.int64)

    def at_speed(self, factor: float) -> list[Request]:
        """The same requests in 1/factor of the time."""
        return [msgspec.structs.replace(item, arrival=item.arrival / factor) for item in self.requests]


def read(path: Path) -> Trace:
    """Raises TraceError, with the line, for what is no trace; a table without times arrives at 0."""
    return parse(_text(path), str(path))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read ({error})") from None


def parse(text: str, name: str) -> Trace:
    """As `read`, from a string; `name` stands for the file in messages."""
    lines = text.splitlines()
    first = next((line for line in lines if line.strip()), "")
    rows = _json_rows(lines, name) if first.lstrip().startswith("{") else _csv_rows(lines, name)
    kept: list[Request] = []
    skipped = 0
    for line, row in rows:
        where = f"{name}:{line}"
        prompt = _tokens(row, PROMPTS, where)
        output = _tokens(row, OUTPUTS, where)
        arrival = _arrival(row, where)
        if prompt and output:
            kept.append(Request(arrival, prompt, output))
        else:
            skipped += 1
    if not kept:
        raise TraceError(f"{name}: no requests in it")
    kept.sort(key=lambda item: item.arrival)
    begin = kept[0].arrival
    return Trace([msgspec.structs.replace(item, arrival=item.arrival - begin) for item in kept], skipped)


def read_conversations(path: Path) -> list[list[Turn]]:
    """From a multi-turn table, in its order; turns of which one half is empty are left out.

    Raises TraceError, with the line, for what is no such table.
    """
    return parse_conversations(_text(path), str(path))


def parse_conversations(text: str, name: str) -> list[list[Turn]]:
    """As `read_conversations`, from a string; `name` stands for the file in messages."""
    found: dict[str, list[Turn]] = {}
    for line, row in _csv_rows(text.splitlines(), name):
        where = f"{name}:{line}"
        if "conv_id" not in row:
            raise TraceError(
                f"{where}: no column conv_id: this table does not say which turns belong together"
            )
        turn = Turn(_tokens(row, ("new_prompt_len",), where), _tokens(row, OUTPUTS, where))
        if turn.said and turn.answer:
            found.setdefault(row["conv_id"], []).append(turn)
    if not found:
        raise TraceError(f"{name}: no conversations in it")
    return list(found.values())


Row = Mapping[str, Any]


def _csv_rows(lines: Iterable[str], name: str) -> Iterator[tuple[int, Row]]:
    reader = csv.reader(lines)
    header = [column.strip().lower() for column in next(reader, [])]
    if not set(header) & set(PROMPTS):
        raise TraceError(f"{name}:1: no column of prompt lengths in {header}; known: {', '.join(PROMPTS)}")
    for cells in reader:
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(header):
            raise TraceError(f"{name}:{reader.line_num}: {len(cells)} cells, the header has {len(header)}")
        yield reader.line_num, dict(zip(header, cells, strict=True))


def _json_rows(lines: Iterable[str], name: str) -> Iterator[tuple[int, Row]]:
    for line, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except json.JSONDecodeError as error:
            raise TraceError(f"{name}:{line}: not JSON ({error.msg})") from None
        if not isinstance(row, dict):
            raise TraceError(f"{name}:{line}: not a JSON object")
        yield line, {str(key).lower(): value for key, value in row.items()}


def _tokens(row: Row, columns: Iterable[str], where: str) -> int:
    column = next((column for column in columns if column in row), None)
    if column is None:
        raise TraceError(f"{where}: none of {', '.join(columns)}")
    try:
        tokens = float(row[column])
    except (TypeError, ValueError):
        tokens = -1.0
    if tokens < 0 or not tokens.is_integer():
        raise TraceError(f"{where}: {column} is {row[column]!r}, not a number of tokens")
    return int(tokens)


def _arrival(row: Row, where: str) -> float:
    column = next((column for column in TIMES if column in row), None)
    if column is None:
        return 0.0
    value = row[column]
    unit = 1.0 if column == "timestamp" and BURSTGPT_PROMPT in row else TIMES[column]
    try:
        seconds = float(value) * unit
    except (TypeError, ValueError):
        return _date(str(value).strip(), f"{where}: {column} is {value!r}")
    if not math.isfinite(seconds):
        raise TraceError(f"{where}: {column} is {value!r}, not a time")
    return seconds


_DATE = re.compile(r"(?P<whole>[^.]+?)(?P<decimals>\.\d+)?(?P<zone>Z|[+-]\d\d:?\d\d)?")


def _date(text: str, where: str) -> float:
    """Seconds since 1970, of a date without a zone as if it were UTC; Azure writes seven decimals, of which
    Python reads six.
    """
    match = _DATE.fullmatch(text)
    try:
        if match is None:
            raise ValueError(text)
        moment = datetime.fromisoformat(match["whole"] + (match["zone"] or "+00:00"))
    except ValueError:
        raise TraceError(f"{where}, neither a number nor a date") from None
    return moment.timestamp() + float(match["decimals"] or 0)
