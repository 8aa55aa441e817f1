"""`skipjoin serve` as a user runs it: a process in the foreground, with Ray, HAProxy and NATS below it.

For benchmarks that compare configurations in one run, and for the system tests.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

from shared.errors import SkipjoinError
from shared.ports import unused_port

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0
_MARK = "SKIPJOIN_SERVED_MARK"


class NotStarted(SkipjoinError):
    """The application ended, or was not ready in time; the message has what it printed."""


class ServedApplication:
    """Ready inside the context; `stop` sends SIGINT and waits.

    Entering raises NotStarted.
    """

    def __init__(self, *assignments: str, file: Path | None = None) -> None:
        """file: the configuration, default deploy/local.yaml; assignments: as of `--set`"""
        port = unused_port()
        secure = any(assignment.startswith("gateway.tls_cert=") for assignment in assignments)
        self.url = f"{'https' if secure else 'http'}://127.0.0.1:{port}"
        self._mark = secrets.token_hex(8)
        command = [str(Path(sys.executable).with_name("skipjoin")), "serve", "--set", f"gateway.port={port}"]
        command += [str(file)] if file is not None else []
        for assignment in assignments:
            command += ["--set", assignment]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, _MARK: self._mark},
        )
        self.output: list[str] = []
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output.append(line)
            if "Ctrl-C stops it" in line:
                self._ready.set()
        self._ready.set()  # it ended: nobody needs to wait any longer

    def __enter__(self) -> Self:
        self._ready.wait(START_TIMEOUT_S)
        if self.process.poll() is not None or "Ctrl-C" not in "".join(self.output):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.stop()
            raise NotStarted(f"skipjoin serve did not start:\n{''.join(self.output)}")
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait_for_end(self) -> int:
        status = self.process.wait(START_TIMEOUT_S)
        self._reader.join(10)
        return status

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """Its exit status. Raises subprocess.TimeoutExpired if it had to be killed, with all it started."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            raise

    def survivors(self) -> list[str]:
        """Command lines of processes that were started by this one and still run."""
        return list(self.processes().values())

    def pids(self, deployment: str) -> list[int]:
        """Of the replicas of one Ray Serve deployment."""
        return [pid for pid, line in self.processes().items() if line.split(":")[-1].strip() == deployment]

    def processes(self) -> dict[int, str]:
        """Their command lines by process id."""
        found: dict[int, str] = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if f"{_MARK}={self._mark}".encode() in (folder / "environ").read_bytes():
                    found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue  # it has ended, or is not ours
        return found
