"""The whole application in one process: real NATS, real HTTP, every service; only Ray Serve is left out."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from typing import Any, Self

import httpx
import uvicorn

from services.gateway.service import GatewayService
from services.kvcache.service import KVCacheService
from services.profiler.service import ProfilerService
from services.scheduler.service import SchedulerService
from services.stage.service import StageService
from shared.config import Config, Tree, parse
from shared.nats_server import EmbeddedNats, with_embedded_address
from shared.ports import unused_port
from shared.service import Service
from tests.rank_processes import LocalRanks

_BUSY = re.compile(r'skipjoin_jobs\{|skipjoin_kv_blocks\{(pipeline="\d+",)?state="(held|moving)"')
READY_TIMEOUT_S = 120.0
PROFILE = {"cache": False, "prefill_tokens": [16, 48], "decode_batches": [1], "decode_tokens": 3}
"""A short grid: tests do not need a good fit."""
SMALL_POOLS = {"device_blocks": 128, "host_blocks": 128}


def pipeline_services(config: Config, pipeline: int) -> list[Service]:
    stages = range(config.parallel.pipeline_stages)
    return [
        SchedulerService(config, pipeline),
        KVCacheService(config, pipeline),
        ProfilerService(config, pipeline),
        *(StageService(config, index, pipeline=pipeline) for index in stages),
    ]


class Application:
    """An async context: ready inside, gone afterwards."""

    def __init__(self, **sections: Any) -> None:
        tree: Tree = {"profiler": PROFILE, "kv": SMALL_POOLS, **sections}
        self.config: Config = with_embedded_address(parse(tree))
        self.nats = EmbeddedNats(self.config.nats)
        self.kvcache = KVCacheService(self.config)
        self.scheduler = SchedulerService(self.config)
        self.profiler = ProfilerService(self.config)
        self.ranks = [LocalRanks() for _ in range(self.config.parallel.pipeline_stages)]
        several = self.config.parallel.tensor_parallel > 1
        self.stages = [
            StageService(self.config, index, ranks if several else None)
            for index, ranks in enumerate(self.ranks)
        ]
        self.gateway = GatewayService(self.config)
        self.more = [
            pipeline_services(self.config, pipeline) for pipeline in range(1, self.config.parallel.replicas)
        ]
        """Those of further pipelines, the scheduler first."""

    @property
    def services(self) -> list[Service]:
        first = [self.gateway, self.profiler, self.scheduler, self.kvcache, *self.stages]
        return [*first, *(service for services in self.more for service in services)]

    async def __aenter__(self) -> Self:
        await asyncio.gather(*(service.start() for service in self.services))
        await self._serve_http()
        self.http = httpx.AsyncClient(base_url=self.url, timeout=120)
        async with asyncio.timeout(READY_TIMEOUT_S):
            await self.ready()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()
        self._server.should_exit = True
        await self._serving
        for service in self.services:
            service.check()
        for service in self.services:
            await service.stop()
        for ranks in self.ranks:
            ranks.assert_ended()
        self.nats.stop()

    async def _serve_http(self) -> None:
        port = unused_port()
        self.url = f"http://127.0.0.1:{port}"
        settings = uvicorn.Config(
            self.gateway.api,
            port=port,
            log_level="error",
            lifespan="off",
            timeout_graceful_shutdown=10,  # a client that a test left open must not keep it from ending
        )
        self._server = uvicorn.Server(settings)
        self._serving = asyncio.create_task(self._server.serve())

    async def ready(self) -> None:
        """Returns when the gateway takes requests."""
        hellos = await self.gateway.bus.subscribe(self.gateway.bus.subjects.schedulers)
        while not (self._server.started and self.gateway._engine.ready[0]):
            await hellos.next()
        await hellos.close()

    def completion(self, prompt: str, max_tokens: int, **fields: Any) -> dict[str, Any]:
        """Body of a completion that runs to `max_tokens`."""
        model = self.config.model.served_name
        return {"model": model, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, **fields}

    async def chunks(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        """Those of a streamed completion, which must not fail. Use it with `aclosing` to leave early."""
        async with self.http.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    chunk = json.loads(line.removeprefix("data: "))
                    assert "error" not in chunk, chunk
                    yield chunk

    async def metrics(self) -> dict[str, float]:
        """Samples by `name{labels}`, as a scraper sees them, but without the name of the gateway."""
        text = re.sub(r'gateway="[^"]*",?', "", (await self.http.get("/metrics")).text).replace("{}", "")
        text = text.replace(",}", "}")
        lines = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in lines}

    async def settled(self) -> dict[str, float]:
        """Metrics once no job is left and no block is held or moving. TimeoutError if that never is."""
        changes = await self.gateway.bus.subscribe(f"sj.v1.{self.config.app}.>", depth=65536)
        async with asyncio.timeout(30):
            while True:
                metrics = await self.metrics()
                busy = [name for name, value in metrics.items() if value and _BUSY.match(name)]
                if not busy:
                    await changes.close()
                    return metrics
                await changes.next()
