"""Two neighbouring stages and torch.distributed between them, with gloo.

A process group of its own for each hop, not the process's default one: a stage that is replaced meets only
its neighbours anew, and ranks of a stage may have groups for other purposes.
"""

import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor
from torch.distributed import (
    PrefixStore,  # pyright: ignore[reportPrivateImportUsage]
    TCPStore,  # pyright: ignore[reportPrivateImportUsage]
)

from services.stage.gloo import gloo_group
from shared.errors import ActivationLost

_SENDER, _RECEIVER = 0, 1


def address_towards(host: str) -> str:
    """The address of this machine from which `host` is reached; nothing is sent.

    Raises OSError if there is no way to it.
    """
    family, kind, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(target)
        return probe.getsockname()[0]


def host_of(url: str) -> str:
    """Of a NATS server's URL."""
    return urlsplit(url).hostname or "127.0.0.1"


class Store:
    """Where the two stages find each other; it lives with the sender. address: host:port"""

    def __init__(self, host: str, timeout: float) -> None:
        self._host = host
        self._timeout = timeout
        self.inner = TCPStore(
            host, 0, is_master=True, timeout=timedelta(seconds=timeout), wait_for_workers=False
        )
        self.address = f"{host}:{self.inner.port}"

    def pair(self) -> "Pair":
        """Blocks until the receiver has joined. Raises ActivationLost."""
        return Pair(self.inner, _SENDER, self._host, self._timeout)


class Pair:
    """One end. All calls block; those of one end come from one thread, in the order of the messages."""

    def __init__(self, store: TCPStore, rank: int, host: str, timeout: float) -> None:
        self._timeout = timedelta(seconds=timeout)
        try:
            self._group = gloo_group(PrefixStore("hop", store), rank, 2, host, self._timeout)
        except RuntimeError as error:
            raise ActivationLost(f"torch.distributed: the neighbour did not join: {error}") from error
        self._store = store  # it must live as long as the group

    @classmethod
    def join(cls, address: str, timeout: float) -> "Pair":
        """The receiver's end, for the sender's store. Raises ActivationLost."""
        host, _, port = address.rpartition(":")
        try:
            store = TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=timeout))
            return cls(store, _RECEIVER, address_towards(host), timeout)
        except (RuntimeError, OSError) as error:
            raise ActivationLost(f"torch.distributed: no way to the stage at {address}: {error}") from error

    def send(self, content: Tensor, tag: int) -> None:
        """content: on the CPU, contiguous. Raises ActivationLost; the pair is of no use afterwards."""
        self._complete(lambda: self._group.send([content.view(torch.uint8)], _RECEIVER, tag))

    def receive(self, content: Tensor, tag: int) -> None:
        """Fill `content`. Raises ActivationLost; the pair is of no use afterwards."""
        self._complete(lambda: self._group.recv([content.view(torch.uint8)], _SENDER, tag))

    def _complete(self, begin: Callable[[], Any]) -> None:
        try:
            begin().wait(self._timeout)
        except RuntimeError as error:  # of both: a connection that is closed already refuses to begin
            raise ActivationLost(
                f"torch.distributed: the neighbour is gone, or took nothing for "
                f"{self._timeout.total_seconds():g} s (stage.transfer_timeout_s): {error}"
            ) from error
