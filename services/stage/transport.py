"""Activations between stages: inside the message while small, through shared memory when large.

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

import torch
from torch import Tensor

from shared.config import StageConfig
from shared.errors import BusError, ConfigError
from shared.messages import TensorData

log = logging.getLogger("skipjoin.stage")

_FOLDER = Path("/dev/shm")
_NAME = re.compile(r"skipjoin-(?P<pid>\d+)-\d+")
_DEAD_AFTER_S = 60.0
"""A segment of a process that we do not see is left alone that long: it may live in another pid namespace."""

_numbers = itertools.count(1)
"""Of all transports in this process: a name is never used twice."""


class ActivationTransport:
    """Both ends of the way to the next stage on one host.

    Raises ConfigError if shared memory is demanded and is not there.
    """

    def __init__(self, config: StageConfig, folder: Path = _FOLDER) -> None:
        self._mode = config.transport
        self._inline_bytes = config.inline_bytes
        self._folder = folder
        self._sent: set[str] = set()
        if self._mode != "inline":
            self._check_folder()
        if self._mode != "inline":
            self._remove_segments_of_the_dead()

    def pack(self, hidden: Tensor) -> TensorData:
        """hidden: [tokens, hidden_size], any dtype and device.

        Raises BusError when shared memory is demanded and is full.
        """
        raw = hidden.cpu().contiguous().view(torch.uint8).numpy()
        dtype, shape = str(hidden.dtype).removeprefix("torch."), list(hidden.shape)
        if self._mode == "shm" or (self._mode == "auto" and raw.nbytes > self._inline_bytes):
            try:
                return TensorData(dtype, shape, segment=self._write(raw.data.cast("B")))
            except OSError as error:
                if self._mode == "shm":
                    raise BusError(
                        f"{raw.nbytes} bytes of activations do not go into {self._folder} ({error}): "
                        "enlarge it (docker: --shm-size) or set stage.transport to auto"
                    ) from error
                log.warning("%s refuses %d bytes (%s): sent inline", self._folder, raw.nbytes, error)
        return TensorData(dtype, shape, data=raw.tobytes())

    def unpack(self, data: TensorData) -> Tensor:
        """The tensor on the CPU, with memory of its own. A segment is gone afterwards.

        Raises BusError if the segment is not on this host.
        """
        dtype: torch.dtype = getattr(torch, data.dtype)
        if data.segment is None:
            return torch.frombuffer(bytearray(data.data), dtype=dtype).view(data.shape)
        path = self._path(data.segment)
        try:
            with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
                tensor = torch.frombuffer(bytearray(mapped), dtype=dtype).view(data.shape)
            path.unlink()
        except FileNotFoundError:
            raise BusError(
                f"activation segment {path} is not on this host: "
                "stages on several hosts need stage.transport: inline"
            ) from None
        return tensor

    def discard(self, data: TensorData) -> None:
        """Remove what nobody will unpack."""
        if data.segment is not None:
            self._path(data.segment).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove segments that were sent and never fetched."""
        for name in self._sent:
            (self._folder / name).unlink(missing_ok=True)
        self._sent.clear()

    def _write(self, content: memoryview) -> str:
        """Raises OSError and leaves nothing behind when there is no room."""
        name = f"skipjoin-{os.getpid()}-{next(_numbers)}"
        path = self._folder / name
        # Written, not mapped: a full tmpfs then is an error here instead of a SIGBUS.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                while content:
                    content = content[file.write(content) :]
        except OSError:
            path.unlink()
            raise
        self._sent = {sent for sent in self._sent if (self._folder / sent).exists()} | {name}
        return name

    def _path(self, segment: str) -> Path:
        if not _NAME.fullmatch(segment):
            raise BusError(f"{segment!r} is not the name of an activation segment")
        return self._folder / segment

    def _check_folder(self) -> None:
        if os.access(self._folder, os.W_OK | os.X_OK):
            return
        if self._mode == "shm":
            raise ConfigError(
                f"stage.transport: shm needs {self._folder}, which is not writable here; set it to inline"
            )
        log.warning("%s is not writable: all activations are sent inline", self._folder)
        self._mode = "inline"

    def _remove_segments_of_the_dead(self) -> None:
        for path in self._folder.glob("skipjoin-*"):
            match = _NAME.fullmatch(path.name)
            try:
                old = match is not None and time.time() - path.stat().st_mtime > _DEAD_AFTER_S
                if match is not None and old and not Path("/proc", match["pid"]).exists():
                    path.unlink()
            except OSError:
                continue  # another process was faster, or it belongs to another user
