"""`skipjoin serve` ends when it is told to, whatever Ray does."""

import signal
import subprocess
import sys

import pytest

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
