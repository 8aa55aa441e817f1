"""Results for programs, as JSON."""

from pathlib import Path

import msgspec

from shared.errors import ConfigError


def write(path: Path | None, result: object) -> None:
    """To the file of --json, if one is asked for. Raises ConfigError if it cannot be written."""
    if path is None:
        return
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    except OSError as error:
        raise ConfigError(f"--json {path}: {error.strerror}") from None
