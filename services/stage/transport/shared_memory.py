"""Shared memory between the stages of one host: one file of /dev/shm for one activation.

sender                                   receiver (same host)
write /dev/shm/skipjoin-<pid>-<n>
send its name on the bus ──────────────> map, copy, unlink
close(): unlink what nobody fetched
"""

import itertools
import logging
import mmap
import os
import re
import time
from pathlib import Path

from shared.errors import BusError

log = logging.getLogger("skipjoin.stage")

FOLDER = Path("/dev/shm")
_NAME = re.compile(r"skipjoin-(?P<pid>\d+)-\d+")
_DEAD_AFTER_S = 60.0
"""A segment of a process that we do not see is left alone that long: it may live in another pid namespace."""

_numbers = itertools.count(1)
"""Of all stages in this process: a name is never used twice."""


class SharedMemory:
    """Segments of this process, and access to those of others.

    available: whether there is any here
    """

    def __init__(self, folder: Path = FOLDER) -> None:
        self.folder = folder
        self.available = os.access(folder, os.W_OK | os.X_OK)
        self._sent: set[str] = set()
        if self.available:
            self._remove_segments_of_the_dead()

    def write(self, content: memoryview) -> str:
        """Name of a new segment with this content.

        Raises OSError and leaves nothing behind when there is no room.
        """
        name = f"skipjoin-{os.getpid()}-{next(_numbers)}"
        path = self.folder / name
        # Written, not mapped: a full tmpfs then is an error here instead of a SIGBUS.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                while content:
                    content = content[file.write(content) :]
        except OSError:
            path.unlink()
            raise
        self._sent = {sent for sent in self._sent if (self.folder / sent).exists()} | {name}
        return name

    def read(self, segment: str) -> bytearray:
        """Its content; the segment is gone afterwards.

        Raises BusError if it is not on this host.
        """
        path = self._path(segment)
        try:
            with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
                content = bytearray(mapped)
            path.unlink()
        except FileNotFoundError:
            raise BusError(
                f"activation segment {path} is not on this host: between hosts set stage.transport to "
                "chunked or auto"
            ) from None
        return content

    def discard(self, segment: str) -> None:
        """Remove what nobody will read."""
        self._path(segment).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove segments that were written and never fetched."""
        for name in self._sent:
            (self.folder / name).unlink(missing_ok=True)
        self._sent.clear()

    def _path(self, segment: str) -> Path:
        if not _NAME.fullmatch(segment):
            raise BusError(f"{segment!r} is not the name of an activation segment")
        return self.folder / segment

    def _remove_segments_of_the_dead(self) -> None:
        for path in self.folder.glob("skipjoin-*"):
            match = _NAME.fullmatch(path.name)
            try:
                old = match is not None and time.time() - path.stat().st_mtime > _DEAD_AFTER_S
                if match is not None and old and not Path("/proc", match["pid"]).exists():
                    path.unlink()
            except OSError:
                continue  # another process was faster, or it belongs to another user
