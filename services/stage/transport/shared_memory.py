"""Shared memory between the stages of one host: files of /dev/shm that both have mapped, and use again.

sender                                            receiver (same host)
copy into a free segment, or into a new one
its name on the bus ────────────────────────────> map (the first time), copy out
release <──────────────────────── taken ───────── compute
close(): unlink

New pages of shared memory cost more than the copy: a segment is made, mapped and touched once.
"""

import asyncio
import itertools
import logging
import mmap
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from shared.errors import BusError

_T = TypeVar("_T")

log = logging.getLogger("skipjoin.stage")

FOLDER = Path("/dev/shm")
_NAME = re.compile(r"skipjoin-(?P<pid>\d+)-\d+")
_DEAD_AFTER_S = 60.0
"""A segment of a process that we do not see is left alone that long: it may live in another pid namespace."""

_KEPT_BYTES = 64 * 1024 * 1024
"""Of free segments, and of those of others that stay mapped."""

MEETING_BYTES = 16
"""What a stage writes to find out whether the next one sees it."""

_LARGE_BYTES = 1024 * 1024
"""A copy of more takes longer than the way to a thread and back, some 0.2 ms."""

_numbers = itertools.count(1)
"""Of all stages in this process: a name is never used twice."""


class SharedMemory:
    """Segments of this process, and access to those of others. Any thread may call.

    available: whether there is any here
    """

    def __init__(self, folder: Path = FOLDER, kept_bytes: int = _KEPT_BYTES) -> None:
        self.folder = folder
        self.available = os.access(folder, os.W_OK | os.X_OK)
        self._kept_bytes = kept_bytes
        self._lock = threading.Lock()
        self._used: dict[str, Tensor] = {}
        self._free: OrderedDict[str, Tensor] = OrderedDict()
        self._others: OrderedDict[str, Tensor] = OrderedDict()
        if self.available:
            self._remove_segments_of_the_dead()

    # ------------------------------------------------------------ of this process

    def write(self, content: Tensor) -> str:
        """Name of a segment that begins with these bytes, until it is released or discarded.

        content: contiguous, on any device
        Raises OSError and leaves nothing behind when there is no room.
        """
        name, segment = self._take(content.nbytes)
        segment[: content.nbytes].copy_(content.view(torch.uint8).flatten())
        return name

    def release(self, name: str) -> None:
        """Whoever was to read it has done so: it may be written over."""
        with self._lock:
            segment = self._used.pop(name, None)
            if segment is not None:
                self._free[name] = segment
                self._trim()

    def discard(self, name: str) -> None:
        """Somebody may still read it, so that it must not be written over, and nobody needs what is read."""
        with self._lock:
            if self._used.pop(name, None) is not None:
                self._unlink(name)

    def close(self) -> None:
        with self._lock:
            for name in (*self._used, *self._free):
                self._unlink(name)
            self._used.clear()
            self._free.clear()
            self._others.clear()

    def _take(self, size: int) -> tuple[str, Tensor]:
        """A segment of `size` bytes or more, in use now: the smallest free one that is large enough."""
        with self._lock:
            fitting = [name for name, segment in self._free.items() if segment.nbytes >= size]
            if fitting:
                name = min(fitting, key=lambda each: self._free[each].nbytes)
                self._used[name] = self._free.pop(name)
            else:
                for small in self._free:  # they make room, and sizes settle at what is needed
                    self._unlink(small)
                self._free.clear()
                name = f"skipjoin-{os.getpid()}-{next(_numbers)}"
                self._used[name] = self._make(name, size)
            return name, self._used[name]

    def _make(self, name: str, size: int) -> Tensor:
        path = self.folder / name
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            # Reserved now: a full tmpfs is an error here instead of a SIGBUS in the copy.
            os.posix_fallocate(descriptor, 0, size)
            return _mapped(descriptor)
        except OSError:
            path.unlink()
            raise
        finally:
            os.close(descriptor)

    def _trim(self) -> None:
        while sum(segment.nbytes for segment in self._free.values()) > self._kept_bytes:
            name, _ = self._free.popitem(last=False)
            self._unlink(name)

    def _unlink(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    # ------------------------------------------------------------ of others

    def read(self, name: str, into: Tensor) -> None:
        """Fill `into`, which is contiguous and on the CPU, with what the segment begins with.

        Raises BusError if it is not on this host.
        """
        segment = self._mapping(name)
        into.view(torch.uint8).flatten().copy_(segment[: into.nbytes])

    def forget(self) -> None:
        """Let go of what is mapped; whatever is read again is mapped again."""
        with self._lock:
            self._others.clear()

    def _mapping(self, name: str) -> Tensor:
        with self._lock:
            segment = self._others.pop(name, None)
            if segment is None:
                segment = self._map(name)
            self._others[name] = segment
            while sum(other.nbytes for other in self._others.values()) > self._kept_bytes:
                self._others.popitem(last=False)
            return segment

    def _map(self, name: str) -> Tensor:
        if not _NAME.fullmatch(name):
            raise BusError(f"{name!r} is not the name of an activation segment")
        path = self.folder / name
        try:
            descriptor = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            raise BusError(
                f"activation segment {path} is not on this host: between hosts set stage.transport to "
                "chunked or auto"
            ) from None
        try:
            return _mapped(descriptor)
        finally:
            os.close(descriptor)

    def _remove_segments_of_the_dead(self) -> None:
        for path in self.folder.glob("skipjoin-*"):
            match = _NAME.fullmatch(path.name)
            try:
                old = match is not None and time.time() - path.stat().st_mtime > _DEAD_AFTER_S
                if match is not None and old and not Path("/proc", match["pid"]).exists():
                    path.unlink()
            except OSError:
                continue  # another process was faster, or it belongs to another user


async def in_thread_if_large(size: int, copy: Callable[..., _T], *arguments: Any) -> _T:
    """What copy(*arguments) returns, which moves `size` bytes."""
    if size <= _LARGE_BYTES:
        return copy(*arguments)
    return await asyncio.to_thread(copy, *arguments)


def _mapped(descriptor: int) -> Tensor:
    """The bytes of a file; it is unmapped with the last tensor that uses them."""
    return torch.frombuffer(mmap.mmap(descriptor, 0), dtype=torch.uint8)
