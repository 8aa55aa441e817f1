"""What happened to each request, one JSON object a line: a header, the records as they end, and a last line.

pandas, DuckDB and jq read it as it is.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Self

import msgspec

from shared.errors import SkipjoinError

FORMAT = 1

OK, ABORTED = "ok", "aborted"


class RunError(SkipjoinError):
    """A result file cannot be read or written; the message starts with the file."""


class Record(msgspec.Struct):
    """Times are seconds since the run began; `scheduled` is when the request was due, and what latencies
    count from: a client that waits, or is late, does not hide what its user would have seen.

    kind: class in the mix; talk, turn: conversation, and place in it
    asked_prompt, asked_output: tokens that the workload wants; prompt, output: those the server reports
    counted_by: what `output` is from; chunks (one token each) is a guess
    sent: its headers were written; first, end: first and last of what the model generated arrived
    outcome: ok, or what went wrong; detail: in the server's words
    arrivals: when each chunk of the answer arrived; events that arrive together are one chunk
    chunk_tokens: tokens in each, where the server tells
    """

    index: int
    kind: str
    tenant: str
    talk: int
    turn: int
    asked_prompt: int
    asked_output: int
    scheduled: float
    sent: float | None = None
    first: float | None = None
    end: float | None = None
    outcome: str = ABORTED
    detail: str = ""
    status: int | None = None
    finish: str | None = None
    prompt: int | None = None
    cached: int | None = None
    output: int | None = None
    counted_by: Literal["usage", "token_ids", "chunks"] | None = None
    request_id: str | None = None
    arrivals: list[float] = []
    chunk_tokens: list[int] | None = None


class Header(msgspec.Struct):
    """target: name; rate: requests/s, None: of a trace; load: the rate over the capacity, if that is known
    capacity: requests/s; lone_iteration_s: between two tokens of a request that is alone
    benchmark: all settings; server: what was found out about it; when: ISO 8601
    """

    target: str
    rate: float | None
    load: float | None
    repeat: int
    seed: int
    benchmark: dict[str, Any]
    server: dict[str, Any]
    machine: dict[str, Any]
    when: str
    capacity: float | None = None
    lone_iteration_s: float | None = None
    format: int = FORMAT


class End(msgspec.Struct):
    """seconds: of the run; aborted: somebody stopped it; unsent: turns whose conversation ended before"""

    seconds: float
    aborted: bool = False
    unsent: int = 0


class Run(msgspec.Struct):
    header: Header
    records: list[Record]
    end: End


class RunFile:
    """Written as the requests end, so that nothing measured is lost with the process."""

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise RunError(f"{path}: cannot be written ({error.strerror})") from None
        self._write({"header": header})

    def add(self, record: Record) -> None:
        self._write({"record": record})

    def finish(self, end: End) -> None:
        self._write({"end": end})

    def _write(self, line: Any) -> None:
        self._file.write(msgspec.json.encode(line) + b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


class _Line(msgspec.Struct):
    header: Header | None = None
    record: Record | None = None
    end: End | None = None


def read(path: Path) -> Run:
    """Raises RunError. A run without a last line was killed: what it has is still read."""
    header: Header | None = None
    records: list[Record] = []
    end: End | None = None
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from None
    for number, text in enumerate(lines, 1):
        try:
            line = msgspec.json.decode(text, type=_Line)
        except msgspec.DecodeError as error:
            if number == len(lines) and header is not None:
                break  # cut in the middle of its last line
            raise RunError(f"{path}:{number}: not a line of a run ({error})") from None
        header, end = line.header or header, line.end or end
        if line.record is not None:
            records.append(line.record)
    if header is None:
        raise RunError(f"{path}: not the result of `skipjoin bench`: it has no header")
    if header.format > FORMAT:
        raise RunError(f"{path}: format {header.format} is newer than {FORMAT}, which this version reads")
    records.sort(key=lambda record: record.index)
    last = max((record.end or record.scheduled for record in records), default=0.0)
    return Run(header, records, end or End(last, aborted=True))


def find(paths: Iterable[Path]) -> list[Path]:
    """Result files among these files and in these folders. Raises RunError if there is none."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not inside:
            raise RunError(f"{path}: no result (*.jsonl) in this folder")
        found += inside
    return found
