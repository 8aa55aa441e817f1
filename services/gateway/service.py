"""The gateway's shell: the HTTP application over the engine that speaks to the schedulers."""

import asyncio
from pathlib import Path

from fastapi import FastAPI
from opentelemetry.sdk.trace.sampling import Sampler, TraceIdRatioBased

from services.gateway.api import create_app
from services.gateway.bus_engine import BusEngine
from services.gateway.keys import Keyring, load
from services.gateway.open_requests import OpenRequests
from services.gateway.pipelines_api import Scaler
from services.gateway.timeline_exchange import TimelineExchange
from services.gateway.timelines import KeptTimelines
from services.gateway.tokenizer import Tokenizer
from services.stage import checkpoint
from shared.bus import Subscription
from shared.config import Config
from shared.messages import DRAINED, AskRequests, Drain, Hello
from shared.service import Service


class GatewayService(Service):
    """api: the ASGI application, there once `start` has returned
    scaler: adds and removes pipelines, where there is something that can
    """

    api: FastAPI
    _engine: BusEngine
    _drained = False

    def __init__(self, config: Config, scaler: Scaler | None = None) -> None:
        super().__init__(config, "gateway", pipeline=None)
        self._scaler = scaler

    async def on_start(self) -> None:
        keyring = self._keyring()
        folder = await asyncio.to_thread(
            checkpoint.resolve, self.config.model, lambda text, fraction: None, weights=False
        )
        tokenizer = await asyncio.to_thread(Tokenizer, folder)
        stages = [f"stage{index}" for index in range(self.config.parallel.pipeline_stages)]
        services = ["scheduler", "kvcache", "profiler", *stages]
        self._engine = BusEngine(self.bus, self.registry, services, self.config, self.clock)
        await self._engine.open()
        requests = OpenRequests()
        asked = await self.bus.subscribe(self.bus.subjects.gateway_requests(self.bus.instance))
        self.supervisor.start("requests asked for", self._tell_of(requests, asked))
        timelines = KeptTimelines(self.config.timeline.requests)
        exchange = TimelineExchange(self.bus, timelines)
        await exchange.open()
        self.supervisor.start("jobs ended", exchange.receive_jobs())
        self.supervisor.start("requests ended", exchange.receive_requests())
        self.supervisor.start("tell others", exchange.tell_others())
        self.supervisor.start("tokens", self._engine.receive_tokens())
        self.supervisor.start("schedulers", self._engine.watch_schedulers())
        hellos = await self.bus.subscribe(self.bus.subjects.hello(self.name))
        self.supervisor.start("gateways", self._engine.watch_gateways(hellos))
        orders = await self.bus.subscribe(self.bus.subjects.drain)
        self.supervisor.start("drain", self._drain_when_told(orders))
        self.supervisor.start("prefixes", self._engine.watch_prefixes())
        self.api = create_app(
            self._engine,
            tokenizer,
            self.config,
            self.registry,
            self.tracing.tracer,
            keyring,
            self._scaler,
            timelines,
            requests,
        )
        self.api.openapi()  # made before there are answers that it could hold up

    def sampler(self) -> Sampler:
        return TraceIdRatioBased(self.config.tracing.sample_ratio)

    def _keyring(self) -> Keyring | None:
        """Raises ConfigError."""
        gateway = self.config.gateway
        if gateway.exposed:
            self.log.warning(
                "gateway.host is %s and gateway.keys_file is not set: whoever reaches this address may ask",
                gateway.host,
            )
        if gateway.keys_file is None:
            return None
        keys = load(Path(gateway.keys_file).expanduser())
        self.log.info("%d API keys: %s", len(keys), ", ".join(key.name for key in keys))
        return Keyring(keys, self.clock)

    @property
    def metrics_subject(self) -> str:
        """Its own: whichever gateway is scraped asks every other one."""
        return self.bus.subjects.gateway_metrics(self.bus.instance)

    def hello(self) -> Hello:
        ready, reason = self._engine.ready
        return Hello(self.name, self.bus.instance, ready, DRAINED if self._drained else reason)

    async def drain(self) -> None:
        await self._engine.drain(self.config.gateway.drain_s)

    async def _tell_of(self, requests: OpenRequests, asked: Subscription) -> None:
        """Other gateways, which answer for all."""
        async for delivery in asked:
            if isinstance(delivery.body, AskRequests):
                await self.bus.reply(delivery, requests.tell(delivery.body))

    async def _drain_when_told(self, orders: Subscription) -> None:
        """While everything still runs that the open answers need."""
        async for delivery in orders:
            if isinstance(delivery.body, Drain):
                self.log.info("draining")
                await self.drain()
                self._drained = True
                await self.say_hello()
