"""Two "hosts" on one machine: the second one is a network namespace at the other end of a veth pair.

Each host has mounts, /dev/shm and process ids of its own, so that nothing but the link connects them, and so
that whatever was started there ends with it. NATS, Ray's head and all services but one are on the first host,
in the machine's own network.
"""

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

import httpx
import yaml

from shared.nats_server import server_binary
from shared.ports import unused_ports

_CAP_NET_ADMIN, _CAP_SYS_ADMIN = 12, 21
_READY_S = 240.0
_ROOT = Path(__file__).parents[2]


def missing_privilege() -> str | None:
    """Why this process may not make namespaces, or None if it may."""
    status = Path("/proc/self/status").read_text()
    effective = int(next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), 16)
    for name, bit in (("CAP_NET_ADMIN", _CAP_NET_ADMIN), ("CAP_SYS_ADMIN", _CAP_SYS_ADMIN)):
        if not effective >> bit & 1:
            return f"two hosts on one machine need {name}, which this process does not have: run as root"
    return None


class TwoHosts:
    """Skipjoin with stage 0 on the first host and stage 1 on the second; ready inside the context."""

    def __init__(self, args: dict[str, Any]) -> None:
        """args: configuration tree without `nats` and `parallel`"""
        mark = secrets.token_hex(3)
        self._namespace, self._near, self._far = f"sj{mark}", f"sj{mark}a", f"sj{mark}b"
        subnet = f"10.251.{secrets.randbelow(256)}"
        self._first, self._second = f"{subnet}.1", f"{subnet}.2"
        # Short: Ray's sockets are below it, and a socket's path takes 107 characters.
        self._folder = Path(tempfile.mkdtemp(prefix="sj-", dir="/tmp"))
        self._ray, self._nats, http = unused_ports(3)
        self._token = secrets.token_hex(32)
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(_ROOT),
            "OMP_WAIT_POLICY": "passive",
            "RAY_AUTH_MODE": "token",  # Ray's default for the head, but not for those who join it
            "RAY_AUTH_TOKEN": self._token,
        }
        self._processes: list[subprocess.Popen[bytes]] = []
        self._config = self._folder / "two_hosts.yaml"
        self._config.write_text(yaml.safe_dump(self._document(args, http)))
        self.url = f"http://127.0.0.1:{http}"

    def __enter__(self) -> Self:
        try:
            self._link()
            self._start_nats()
            self._start_first()
            self._start_second()
            self._wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in reversed(self._processes):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        # Either end takes the other with it; both may be gone if the start failed.
        subprocess.run(["ip", "link", "delete", self._near], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "delete", self._namespace], capture_output=True, check=False)
        shutil.rmtree(self._folder, ignore_errors=True)

    def cut(self) -> None:
        """Nothing passes between the hosts any more."""
        _ip("link", "set", self._near, "down")

    def mend(self) -> None:
        _ip("link", "set", self._near, "up")

    # ------------------------------------------------------------ building it

    def _document(self, args: dict[str, Any], http: int) -> dict[str, Any]:
        """A Ray Serve config file that pins every deployment to a host."""
        tree = {
            **args,
            "nats": {"url": f"nats://{self._first}:{self._nats}", "token": self._token},
            "parallel": {"pipeline_stages": 2},
        }
        hosts = {
            "scheduler": "first",
            "kvcache": "first",
            "profiler": "first",
            "gateway": "first",
            "stage-0": "first",
            "stage-1": "second",
        }
        environment = {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1"}
        deployments = [
            {
                "name": name,
                "ray_actor_options": {
                    "num_cpus": 0,
                    "resources": {host: 0.001},
                    "runtime_env": {"env_vars": environment},
                },
            }
            for name, host in hosts.items()
        ]
        return {
            "proxy_location": "HeadOnly",
            "http_options": {"host": "127.0.0.1", "port": http},
            "applications": [
                {
                    "name": "skipjoin",
                    "route_prefix": "/",
                    "import_path": "deploy.app:build",
                    "args": tree,
                    "deployments": deployments,
                }
            ],
        }

    def _link(self) -> None:
        _ip("netns", "add", self._namespace)
        _ip("link", "add", self._near, "type", "veth", "peer", "name", self._far)
        _ip("link", "set", self._far, "netns", self._namespace)
        _ip("address", "add", f"{self._first}/30", "dev", self._near)
        _ip("link", "set", self._near, "up")
        _ip("-n", self._namespace, "address", "add", f"{self._second}/30", "dev", self._far)
        _ip("-n", self._namespace, "link", "set", self._far, "up")
        _ip("-n", self._namespace, "link", "set", "lo", "up")

    def _start_nats(self) -> None:
        """With NATS's own defaults, as an external server has them."""
        settings = self._folder / "nats.conf"
        settings.write_text(
            f'listen: "{self._first}:{self._nats}"\nauthorization {{ token: "{self._token}" }}\n'
        )
        self._start("nats", [server_binary(), "-c", str(settings)])

    def _start_first(self) -> None:
        ray, serve = _script("ray"), _script("serve")
        self._start_host(
            "first",
            [],
            f"{ray} start --head --port={self._ray} --node-ip-address={self._first}"
            f" --temp-dir={self._folder}/ray --resources='{{\"first\": 1}}' {_RAY_LIMITS}"
            " --include-dashboard=false"
            f" && exec {serve} run --address={self._first}:{self._ray} {self._config}",
        )

    def _start_second(self) -> None:
        join = (
            f"{_script('ray')} start --address={self._first}:{self._ray} --node-ip-address={self._second}"
            f" --resources='{{\"second\": 1}}' {_RAY_LIMITS}"
        )
        # The head may not listen yet.
        self._start_host(
            "second",
            ["ip", "netns", "exec", self._namespace],
            f"mkdir -p {self._folder}/ray && mount -t tmpfs tmpfs {self._folder}/ray && "
            f"until {join}; do sleep 0.5; done; exec sleep infinity",
        )

    def _start_host(self, name: str, prefix: list[str], script: str) -> None:
        """In namespaces that end with the process: mounts, process ids."""
        isolate = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._start(
            name, [*prefix, *isolate, "sh", "-c", f"mount -t tmpfs -o size=2g tmpfs /dev/shm && {script}"]
        )

    def _start(self, name: str, command: list[str]) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    command, stdout=log, stderr=subprocess.STDOUT, env=self._environment, cwd=_ROOT
                )
            )

    # ------------------------------------------------------------ getting ready

    def _wait_ready(self) -> None:
        """Raises TimeoutError with what the hosts said last."""
        deadline = time.monotonic() + _READY_S
        reason = ""
        while time.monotonic() < deadline:
            try:
                answer = httpx.get(f"{self.url}/ready", timeout=5)
                if answer.status_code == 200:
                    return
                reason = answer.text
            except httpx.HTTPError as error:
                reason = repr(error)
            if any(process.poll() is not None for process in self._processes):
                break
            time.sleep(0.3)
        raise TimeoutError(f"two hosts: not ready ({reason})\n{self.logs()}")

    def logs(self) -> str:
        """The end of what each host wrote."""
        files = sorted(self._folder.glob("*.log"))
        return "\n".join(f"--- {file.name}\n{file.read_text(errors='replace')[-3000:]}" for file in files)


_RAY_LIMITS = "--num-cpus=2 --object-store-memory=100000000 --disable-usage-stats"


def _script(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _ip(*arguments: str) -> None:
    """Raises RuntimeError with what `ip` says."""
    try:
        subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise RuntimeError("two hosts on one machine need the command `ip`: install iproute2") from None
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"ip {' '.join(arguments)}: {error.stderr.strip()}") from None
