"""A TCP connection between rank 0 of a stage and another rank: whole messages, in order, from any thread.

Not NATS: a rank that has died must be noticed at once, not when it has been silent for long enough.
"""

import hmac
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import msgspec

from services.stage.rank_messages import Joined, RankMessage, RankSpec, decode, encode
from shared.errors import RankLost

_JOIN_BYTES = 4096
"""More than a Joined has: what is read from somebody unknown is bounded."""

_JOIN_S = 10.0
_POLL_S = 0.5


class Link:
    """One end. send_timeout_s: a peer that takes nothing for so long is lost."""

    def __init__(self, connected: socket.socket, send_timeout_s: float) -> None:
        connected.setblocking(True)
        # Else the tail of a large message waits for the acknowledgement of its head.
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(send_timeout_s))
        self.local_address: str = connected.getsockname()[0]
        self._socket = connected
        self._connection = Connection(os.dup(connected.fileno()))
        self._sending = threading.Lock()

    def send(self, message: RankMessage) -> None:
        """Raises RankLost when the other end is gone or does not read."""
        try:
            with self._sending:
                self._connection.send_bytes(encode(message))
        except OSError as error:
            raise RankLost(f"the link to another rank is broken: {error}") from error

    def receive(self) -> RankMessage:
        """Wait for the next message; from one thread at a time.

        Raises RankLost when the other end is gone.
        """
        try:
            return decode(self._connection.recv_bytes())
        except (EOFError, OSError, msgspec.DecodeError) as error:
            raise RankLost(f"the link to another rank has ended: {error!r}") from error

    def receive_joined(self) -> Joined | None:
        """The first message, or None if it is something else or does not come."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(_JOIN_S))
        try:
            message = decode(self._connection.recv_bytes(_JOIN_BYTES))
        except (EOFError, OSError, msgspec.DecodeError):
            return None
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(0.0))
        return message if isinstance(message, Joined) else None

    def close(self) -> None:
        """Both ends notice, also a thread of this process that waits in `receive`."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended already
        self._socket.close()


class Listener:
    """Where rank 0 waits for the others."""

    def __init__(self, host: str, send_timeout_s: float) -> None:
        self._server = socket.create_server((host, 0))
        self._server.settimeout(_POLL_S)
        self._send_timeout_s = send_timeout_s
        self.port: int = self._server.getsockname()[1]

    def accept(self, ranks: int, token: str, timeout_s: float, check: Callable[[], None]) -> dict[int, Link]:
        """The links to ranks 1..ranks-1. check: called now and then, raises if one will never come.

        Raises RankLost after the timeout.
        """
        links: dict[int, Link] = {}
        deadline = time.monotonic() + timeout_s
        while len(links) < ranks - 1:
            if time.monotonic() > deadline:
                missing = sorted({*range(1, ranks)} - links.keys())
                raise RankLost(f"ranks {missing} did not join within {timeout_s:.0f} s")
            check()
            try:
                connected, _ = self._server.accept()
            except TimeoutError:
                continue
            link = Link(connected, self._send_timeout_s)
            joined = link.receive_joined()
            if joined is None or not hmac.compare_digest(joined.token, token) or joined.rank in links:
                link.close()  # a stranger, or somebody who scans ports
            else:
                links[joined.rank] = link
        return links

    def close(self) -> None:
        self._server.close()


def join(spec: RankSpec, send_timeout_s: float) -> Link:
    """From another rank to rank 0. Raises RankLost if nobody listens there any more."""
    try:
        link = Link(socket.create_connection((spec.host, spec.port), _JOIN_S), send_timeout_s)
    except OSError as error:
        raise RankLost(f"rank 0 is not at {spec.host}:{spec.port}: {error}") from error
    link.send(Joined(spec.rank, spec.token))
    return link


def _timeval(seconds: float) -> bytes:
    return struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
