"""What every shell does: connect the bus, say hello, answer for metrics, run loops that are watched.

A service is plain asyncio: `deploy/app.py` wraps it into a Ray Serve deployment, tests run several in one
process.
"""

import logging

from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler

from shared.bus import Bus
from shared.clock import MonotonicClock
from shared.config import Config
from shared.logs import LOGGER
from shared.messages import CollectMetrics, Hello, Progress
from shared.metrics import Registry
from shared.subjects import Subjects
from shared.supervise import Supervisor
from shared.tracing import Tracing

HELLO_EVERY_S = 1.0


class Service:
    """Base of the shells. Subclasses override `on_start`, `drain`, `on_stop` and `hello`.

    name: "gateway", "scheduler", "kvcache", "profiler", "stage0", ...
    pipeline: which one it belongs to; None: to none
    """

    bus: Bus
    tracing: Tracing

    def __init__(self, config: Config, name: str, pipeline: int | None) -> None:
        self.config = config
        self.name = name
        self.pipeline = pipeline
        self.clock = MonotonicClock()
        self.registry = Registry()
        self.supervisor = Supervisor(name)
        whose = f".p{pipeline}" if pipeline else ""
        self.log = logging.getLogger(f"{LOGGER}.{name}{whose}")

    async def start(self) -> None:
        """Connect and start the loops.

        Raises BusClosed without a NATS server; whatever `on_start` raises.
        """
        logging.getLogger(LOGGER).setLevel(self.config.logging.level)
        subjects = Subjects(self.config.app, self.pipeline)
        self.bus = await Bus.connect(self.config.nats, subjects, self.name, self.registry)
        self.tracing = Tracing(self.config.tracing, self.name, self.bus.instance, self.sampler())
        await self.on_start()
        self.supervisor.start("metrics", self._answer_metrics())
        self.supervisor.every("hello", HELLO_EVERY_S, self.say_hello)

    async def stop(self) -> None:
        await self.drain()
        await self.supervisor.stop()
        await self.on_stop()
        self.tracing.shutdown()
        await self.bus.close()

    def check(self) -> None:
        """Raises if the service cannot do its work any more."""
        self.supervisor.check()
        self.bus.check()

    def sampler(self) -> Sampler:
        """Which spans without a parent are recorded. Those of requests are the gateway's to choose."""
        return ALWAYS_ON

    async def on_start(self) -> None:
        """Subscribe and start loops; the bus is connected."""

    async def drain(self) -> None:
        """Bring what is under way to its end; the loops still run."""

    async def on_stop(self) -> None:
        """Give back what `on_start` took; the loops have ended, the bus is still connected."""

    def hello(self) -> Hello:
        return Hello(self.name, self.bus.instance, ready=True)

    @property
    def metrics_subject(self) -> str:
        """Where it is asked for its metrics."""
        return self.bus.subjects.metrics(self.name)

    async def say_hello(self) -> None:
        await self.bus.publish(self.bus.subjects.hello(self.name), self.hello())

    async def report(self, text: str, fraction: float | None = None) -> None:
        """Tell whoever watches the start how far it is."""
        await self.bus.publish(
            self.bus.subjects.progress, Progress(self.name, text, fraction, self.pipeline or 0)
        )

    async def _answer_metrics(self) -> None:
        async for delivery in await self.bus.subscribe(self.metrics_subject):
            if isinstance(delivery.body, CollectMetrics):
                self.update_metrics()
                await self.bus.reply(delivery, self.registry.export())

    def update_metrics(self) -> None:
        """Set gauges that are derived from state; called before every collection."""
