"""The embedded server lives and dies with its owner."""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading

import pytest

from shared.config import Config
from shared.errors import BusClosed
from shared.nats_server import EmbeddedNats, with_embedded_address

OWNER = """
import sys
from shared.config import Config
from shared.nats_server import EmbeddedNats, with_embedded_address
server = EmbeddedNats(with_embedded_address(Config()).nats)
print(server.pid, flush=True)
sys.stdin.read()
"""


def test_it_ends_with_an_owner_that_was_killed() -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert owner.stdout is not None
    server = os.pidfd_open(int(owner.stdout.readline()))
    owner.kill()
    owner.wait()
    readable, _, _ = select.select([server], [], [], 10)
    assert readable, "the server outlived its owner by 10 s"


def test_its_end_is_noticed() -> None:
    server = EmbeddedNats(with_embedded_address(Config()).nats)
    server.check()
    os.kill(server.pid, signal.SIGKILL)
    os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(BusClosed, match="ended with status"):
        server.check()
    server.stop()


def test_the_token_is_not_in_the_process_list() -> None:
    config = with_embedded_address(Config()).nats
    server = EmbeddedNats(config)
    with open(f"/proc/{server.pid}/cmdline", "rb") as file:
        command = file.read().decode()
    server.stop()
    assert config.token is not None and config.token not in command


@pytest.mark.parametrize(
    "greeting", [b"", b'INFO {"server_id":"A","server_name":"another","version":"2.0.0"}\r\n']
)
def test_somebody_else_on_its_port_is_not_taken_for_it(greeting: bytes) -> None:
    """Silent, as Ray's processes are, or another NATS server: clients would wait for it, or be refused."""
    config = with_embedded_address(Config()).nats
    assert config.url is not None
    with socket.create_server(("127.0.0.1", int(config.url.rsplit(":", 1)[1]))) as other:

        def greet() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = other.accept()
                    connection.sendall(greeting)
                    kept.append(connection)

        kept: list[socket.socket] = []
        threading.Thread(target=greet, daemon=True).start()
        with pytest.raises(BusClosed, match="address already in use"):
            EmbeddedNats(config)
        other.shutdown(socket.SHUT_RDWR)
        for connection in kept:
            connection.close()
