"""How log lines look: text for people, or JSON for programs; both with fields beside the message.

Fields are given as `extra={"fields": {...}}`; those that are None are left out.
"""

import json
import logging
from datetime import UTC, datetime
from typing import Any, TextIO

from shared.config import LoggingConfig

LOGGER = "skipjoin"
"""Parent of every logger of ours."""


def handler(config: LoggingConfig, stream: TextIO) -> logging.Handler:
    """Writes lines of the configured form."""
    result = logging.StreamHandler(stream)
    result.setFormatter(JSONFormatter() if config.format == "json" else TextFormatter())
    return result


class TextFormatter(logging.Formatter):
    """2026-01-31T12:00:00.123Z INFO skipjoin.gateway: request finished request_id=a tokens=5"""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_plain(value)}" for name, value in _fields(record).items())
        text = f"{_time(record)} {record.levelname} {record.name}: {record.getMessage()}{fields}"
        return "\n".join([text, *_traceback(self, record)])


class JSONFormatter(logging.Formatter):
    """One object a line: time, level, logger, message, then the fields; `traceback` if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        traceback = _traceback(self, record)
        if traceback:
            line["traceback"] = "\n".join(traceback)
        return _json(line)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, "fields", {})
    return {name: value for name, value in fields.items() if value is not None}


def _time(record: logging.LogRecord) -> str:
    time = datetime.fromtimestamp(record.created, UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    return [formatter.formatException(record.exc_info)] if record.exc_info else []


def _plain(value: object) -> str:
    """Quoted, in JSON's way, where it could be taken for more than one field, or for another line."""
    text = value if isinstance(value, str) else _json(value)
    is_simple = text.isprintable() and not any(mark in text for mark in ' "=') and text != ""
    return text if is_simple else _json(text)


def _json(value: object) -> str:
    """In ASCII: some characters end a line for some readers."""
    return json.dumps(value, separators=(",", ":"), default=str)
