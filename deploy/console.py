"""`skipjoin serve`: start everything on this machine, show how far it is, stay until told to stop."""

import asyncio
import contextlib
import io
import logging
import os
import shutil
import signal
import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

from deploy.draining import drain
from deploy.ingress import haproxy_environment
from deploy.tls import check_certificate, http_options, unverified
from shared.bus import Bus
from shared.config import Config, Tree
from shared.errors import BusClosed, SkipjoinError
from shared.messages import Progress
from shared.metrics import Registry
from shared.nats_server import with_embedded_address
from shared.subjects import Subjects

READY_TIMEOUT_S = 600.0

STOP_TIMEOUT_S = 45.0
"""Ray has so long to stop, from the first attempt; it takes 5 to 10 s. Its processes end with this one."""


class StartFailed(SkipjoinError):
    """The application did not become ready; the message is the cause."""


class Console:
    """One line per step; on a terminal a step with progress redraws its line."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._last = ""

    def show(self, who: str, text: str, fraction: float | None = None) -> None:
        line = f"  {who:<10} {text}"
        if fraction is not None and self._live:
            filled = round(fraction * 20)
            sys.stderr.write(f"\r{line:<60} [{'#' * filled}{'.' * (20 - filled)}]")
            sys.stderr.write("\n" if fraction >= 1 else "")
        elif line != self._last:
            sys.stderr.write(line + "\n")
        sys.stderr.flush()
        self._last = line


def serve(config: Config, overrides: dict[str, Tree]) -> int:
    """Run until SIGINT or SIGTERM. Returns the exit status: 0 after a clean stop, 1 if the start failed."""
    console = Console()
    patience = threading.Timer(STOP_TIMEOUT_S, _leave)
    patience.daemon = True
    try:
        _check_port(config)
        _check_access(config, console)
        _prepare_model(config, console)
        return asyncio.run(_serve(config, overrides, console, patience))
    except SkipjoinError as error:
        sys.stderr.write(f"skipjoin: {error}\n")
        return 1
    finally:
        patience.cancel()


def _leave() -> None:
    """Ray may hang, in threads of its own, when one of its processes has died (without memory, say)."""
    sys.stderr.write(f"skipjoin: Ray has not stopped in {STOP_TIMEOUT_S:.0f} s, it is left to its fate\n")
    sys.stderr.flush()
    os._exit(1)


def _check_port(config: Config) -> None:
    """Raises StartFailed if somebody else listens where HTTP is to listen."""
    gateway = config.gateway
    family = socket.AF_INET6 if ":" in gateway.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((gateway.host, gateway.port))
        except OSError as error:
            raise StartFailed(
                f"gateway.port: cannot listen on {gateway.host}:{gateway.port} ({error.strerror})"
            ) from None


def _check_access(config: Config, console: Console) -> None:
    """Raises ConfigError for a keys file that cannot be used, before anything starts."""
    from services.gateway.keys import load

    gateway = config.gateway
    if gateway.keys_file is not None:
        load(Path(gateway.keys_file).expanduser())
    if gateway.exposed:
        console.show(
            "gateway", f"warning: {gateway.host} and no gateway.keys_file: whoever reaches it may ask"
        )


def _prepare_model(config: Config, console: Console) -> None:
    """Before Ray starts, so that what cannot work fails in a second, and a download shows its progress."""
    from services.stage import checkpoint
    from services.stage.shards import check_heads

    folder = checkpoint.resolve(config.model, lambda text, fraction: console.show("model", text, fraction))
    heads, kv_heads = checkpoint.heads(folder)
    check_heads(heads, kv_heads, config.parallel.tensor_parallel)


async def _serve(
    config: Config, overrides: dict[str, Tree], console: Console, patience: threading.Timer
) -> int:
    """patience: is started when Ray is to stop"""
    stop = asyncio.Event()
    hurry = asyncio.Event()
    _listen_for_signals(stop, hurry)
    embedded = config.nats.url is None
    if embedded:
        config = with_embedded_address(config)
    else:
        await _check_external_nats(config)
    check_certificate(config.gateway)
    environment = {"RAY_SERVE_ENABLE_HA_PROXY": "0"} if config.gateway.tls else haproxy_environment()
    os.environ.update(environment)
    application = _Application(config, overrides, embedded)
    console.show("ray", "starting")
    try:
        await _start(application, stop, hurry)
        _listen_for_signals(stop, hurry)  # Ray has taken SIGTERM for a crash, and aborts after three seconds
        async with _progress(config, console):
            ready = await _wait_ready(application, config, stop)
        if ready:
            _announce(config)
            await stop.wait()
            console.show("gateway", "letting open requests end; once more to stop now")
            await drain(config, hurry, await asyncio.to_thread(application.gateways))
    finally:
        console.show("ray", "stopping")
        patience.start()
        await asyncio.to_thread(application.stop)
        if not config.gateway.tls:
            shutil.rmtree(Path(environment["RAY_SERVE_HAPROXY_SERVER_STATE_BASE"]), ignore_errors=True)
    return 0


def _listen_for_signals(stop: asyncio.Event, hurry: asyncio.Event) -> None:
    """The first signal asks to stop, a second one to stop now."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: (hurry if stop.is_set() else stop).set())


async def _check_external_nats(config: Config) -> None:
    """Raises BusClosed now, instead of in every deployment half a minute later."""
    bus = await Bus.connect(config.nats, Subjects(config.app), "console", Registry(), patience=5.0)
    await bus.close()


async def _start(application: "_Application", stop: asyncio.Event, hurry: asyncio.Event) -> None:
    """Raises StartFailed with Ray's last words, or when it was to stop and did not come so far."""
    starting = asyncio.create_task(asyncio.to_thread(application.start))
    given_up = asyncio.create_task(_give_up(stop, hurry))
    await asyncio.wait((starting, given_up), return_when=asyncio.FIRST_COMPLETED)
    given_up.cancel()
    if not starting.done():
        raise StartFailed("stopped while Ray was starting")
    try:
        await starting
    except SkipjoinError:
        raise
    except Exception as error:
        raise StartFailed(f"Ray Serve could not start: {error}") from error


async def _give_up(stop: asyncio.Event, hurry: asyncio.Event) -> None:
    """Returns at the second signal, or a while after the first: a start cannot be broken off."""
    await stop.wait()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STOP_TIMEOUT_S / 2):
            await hurry.wait()


class _Application:
    """Ray, Ray Serve and the deployments. Ray is imported only after its environment is set."""

    def __init__(self, config: Config, overrides: dict[str, Tree], embedded_nats: bool) -> None:
        self._config = config
        self._overrides = overrides
        self._embedded_nats = embedded_nats

    def start(self) -> None:
        import ray
        from ray import serve

        from deploy.app import assemble

        logging.getLogger("ray").setLevel(logging.ERROR)
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        ray.init(
            address="local",
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        gateway = self._config.gateway
        serve.start(
            proxy_location="HeadOnly",
            http_options=http_options(gateway),
            logging_config={"log_level": "ERROR"},
        )
        application = assemble(self._config, self._overrides, self._embedded_nats)
        serve.run_many(
            [serve.RunTarget(application, name=self._config.app, route_prefix="/")],
            wait_for_ingress_deployment_creation=False,
            wait_for_applications_running=False,
        )

    def failure(self) -> str | None:
        """Why the application cannot start, or None while it may."""
        from ray import serve
        from ray.serve.schema import ApplicationStatus

        application = serve.status().applications.get(self._config.app)
        if application is None or application.status != ApplicationStatus.DEPLOY_FAILED:
            return None
        causes = [
            f"{name}: {_last_line(deployment.message)}"
            for name, deployment in application.deployments.items()
            if deployment.status == "DEPLOY_FAILED"
        ]
        return "\n".join(causes) or application.message

    def gateways(self) -> int | None:
        """Replicas that run now, which autoscaling may have changed; None if that is not known."""
        from ray import serve

        application = serve.status().applications.get(self._config.app)
        gateway = application.deployments.get("gateway") if application is not None else None
        if gateway is None:
            return None
        return sum(count for state, count in gateway.replica_states.items() if state == "RUNNING")

    def stop(self) -> None:
        import ray
        from ray import serve

        if ray.is_initialized():
            # Ray reports the end of its own controller as a failed task, on standard output.
            with contextlib.redirect_stdout(io.StringIO()):
                serve.delete(self._config.app)
                serve.shutdown()
                ray.shutdown()


def _last_line(message: str) -> str:
    """Of a traceback that Serve passes on: the error itself. All of it is in Ray's log folder."""
    return message.strip().rsplit("\n", 1)[-1]


async def _wait_ready(application: _Application, config: Config, stop: asyncio.Event) -> bool:
    """True once the gateway says so; False if asked to stop before.

    Raises StartFailed with the cause when a deployment cannot start or the time is up.
    """
    url = f"{base_url(config)}/ready"
    deadline = asyncio.get_running_loop().time() + READY_TIMEOUT_S
    reason = ""
    while not stop.is_set():
        ready, reason = await asyncio.to_thread(_probe, url)
        if ready:
            return True
        failure = await asyncio.to_thread(application.failure)
        if failure is not None:
            raise StartFailed(f"the application could not start\n{failure}")
        if asyncio.get_running_loop().time() > deadline:
            raise StartFailed(f"not ready after {READY_TIMEOUT_S:.0f} s: {reason}")
        try:
            await asyncio.wait_for(stop.wait(), 0.3)
        except TimeoutError:
            pass
    return False


def _probe(url: str) -> tuple[bool, str]:
    try:
        with urllib.request.urlopen(url, timeout=5, context=unverified()):
            return True, ""
    except urllib.error.HTTPError as error:
        return False, error.read().decode(errors="replace")
    except OSError as error:
        return False, str(error)


@contextlib.asynccontextmanager
async def _progress(config: Config, console: Console) -> AsyncIterator[None]:
    """Show the steps of the deployments inside the context."""
    watcher = asyncio.create_task(_show_progress(config, console))
    try:
        yield
    finally:
        watcher.cancel()
        await asyncio.wait((watcher,))


async def _show_progress(config: Config, console: Console) -> None:
    """Ends silently if NATS cannot be reached: the deployments need it too, and say so."""
    try:
        bus = await Bus.connect(config.nats, Subjects(config.app), "console", Registry())
    except BusClosed:
        return
    try:
        async for delivery in await bus.subscribe(bus.subjects.progress):
            if isinstance(delivery.body, Progress):
                step = delivery.body
                who = f"{step.service} p{step.pipeline}" if step.pipeline else step.service
                console.show(who, step.text, step.fraction)
    finally:
        await bus.close()


def base_url(config: Config) -> str:
    host = "127.0.0.1" if config.gateway.host in ("0.0.0.0", "::") else config.gateway.host
    return f"{'https' if config.gateway.tls else 'http'}://{host}:{config.gateway.port}"


def _announce(config: Config) -> None:
    url = base_url(config)
    body = (
        f'{{"model": "{config.model.served_name}", "stream": true, "temperature": 0, '
        '"messages": [{"role": "user", "content": "What is the capital of France?"}]}'
    )
    print(
        f"\nSkipjoin serves {config.model.served_name} at {url}\n\n"
        f"  curl -N {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'\n\n"
        f"A chat: {url} in a browser, `skipjoin chat --url {url}` in a terminal. The API: {url}/docs\n"
        "Ctrl-C stops it.",
        flush=True,
    )
