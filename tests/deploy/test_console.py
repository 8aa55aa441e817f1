"""`skipjoin serve` ends when it is told to, whatever Ray does."""

import asyncio
import gc
import signal
import subprocess
import sys
from typing import Any

import pytest

from deploy import console
from shared.bus import Bus
from shared.config import Config
from shared.errors import BusClosed

STUCK = """
import sys, threading
from deploy import console
from shared.config import Config

class Stuck:
    def __init__(self, *_): pass
    def start(self):
        print("starting", flush=True)
        threading.Event().wait()
    def stop(self):
        print("stopping", flush=True)
        threading.Event().wait()

console._Application = Stuck
console._prepare_model = lambda *_: None
console.STOP_TIMEOUT_S = 2.0
sys.exit(console.serve(Config(), {}))
"""


@pytest.mark.parametrize("signals", [1, 2])
def test_a_ray_that_hangs_is_left_alone(signals: int) -> None:
    command = [sys.executable, "-c", STUCK]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "starting\n"
        for _ in range(signals):
            process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "stopping\n"
        assert process.wait(30) == 1
        assert "Ray has not stopped" in process.stderr.read()


async def test_progress_ends_quietly_without_nats(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*_: object) -> Bus:
        raise BusClosed("nats://127.0.0.1:4222: cannot be reached")

    monkeypatch.setattr(Bus, "connect", refused)
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    before = asyncio.all_tasks()
    async with console._progress(Config(), console.Console()):
        (watcher,) = asyncio.all_tasks() - before
        await asyncio.wait((watcher,))
    del watcher
    gc.collect()  # a task tells of an exception that nobody asked for as it is freed
    assert reported == []
