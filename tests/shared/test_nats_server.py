"""The embedded server lives and dies with its owner."""

import os
import select
import signal
import subprocess
import sys

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
