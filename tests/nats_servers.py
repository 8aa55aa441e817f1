"""Real NATS servers with a configuration of the test's own, on free loopback ports."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shared.nats_server import _binary

_LISTENS = re.compile(rb"Listening for (?P<what>client|route) connections on \S+:(?P<port>\d+)")


class NatsServer:
    """One process. `listen: "127.0.0.1:-1"` in its configuration takes a free port.

    ports: "client", and "route" in a cluster
    """

    def __init__(self, settings: Path, environment: dict[str, str] | None = None) -> None:
        wanted = {"client", "route"} if "cluster {" in settings.read_text() else {"client"}
        self.log: list[str] = []
        self.ports: dict[str, int] = {}
        self.process = subprocess.Popen(
            [_binary(), "-c", str(settings)], stderr=subprocess.PIPE, env=environment or {}
        )
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line.decode())
            if found := _LISTENS.search(line):
                self.ports[found["what"].decode()] = int(found["port"])
            if wanted == self.ports.keys():
                return
        raise AssertionError("the server did not start:\n" + "".join(self.log))

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()


@contextmanager
def nats_server(
    folder: Path, settings: str, environment: dict[str, str] | None = None
) -> Iterator[NatsServer]:
    path = folder / f"nats-{len(list(folder.iterdir()))}.conf"
    path.write_text(settings)
    server = NatsServer(path, environment)
    try:
        yield server
    finally:
        server.stop()
