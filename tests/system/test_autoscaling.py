"""Gateways that come and go with the load: Ray Serve starts and stops them, and no answer is cut."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import nats
import pytest
import yaml
from nats.aio.msg import Msg

from deploy.options import DEFAULT_CONFIG
from loadgen.served import ServedApplication
from shared.bus import _decoder
from shared.messages import Hello
from tests.nats_servers import nats_server

pytestmark = pytest.mark.system
MODEL = "SmolLM2-135M-Instruct"
SCALING = {
    "min_replicas": 1,
    "max_replicas": 2,
    "target_ongoing_requests": 2,
    "upscale_delay_s": 0.5,
    "downscale_delay_s": 1,
    "metrics_interval_s": 0.5,
    "look_back_period_s": 1,
}
SILENT_S = 4.0
"""A gateway says hello every second."""


class Gateways:
    """What passes over NATS: who is ready, when it last said so, and who is sent tokens."""

    def __init__(self) -> None:
        self.ready: dict[str, float] = {}
        self.answering: set[str] = set()
        self._changed = asyncio.Condition()

    async def hello(self, message: Msg) -> None:
        envelope = _decoder.decode(message.data)
        assert isinstance(envelope.body, Hello)
        async with self._changed:
            if envelope.body.ready:
                self.ready[envelope.source] = asyncio.get_running_loop().time()
            self._changed.notify_all()

    async def tokens(self, message: Msg) -> None:
        self.answering.add(message.subject.split(".")[-2])

    def alive(self) -> int:
        now = asyncio.get_running_loop().time()
        return sum(now - said < SILENT_S for said in self.ready.values())

    async def become(self, count: int) -> None:
        async with self._changed, asyncio.timeout(120):
            await self._changed.wait_for(lambda: self.alive() == count)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    document = yaml.safe_load(DEFAULT_CONFIG.read_text())
    document["applications"][0]["deployments"] = [{"name": "gateway", "autoscaling_config": SCALING}]
    path = tmp_path / "autoscaled.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture
def nats_url(tmp_path: Path) -> Iterator[str]:
    with nats_server(tmp_path, 'listen: "127.0.0.1:-1"\n') as server:
        yield f"nats://127.0.0.1:{server.ports['client']}"


async def answer(client: httpx.AsyncClient, tokens: int) -> tuple[int, str | None]:
    """Streamed to its end: tokens and finish reason."""
    body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": tokens, "ignore_eos": True}
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    generated, finish = 0, None
    async with client.stream("POST", "/v1/completions", json=body | streamed) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line.removeprefix("data: "))
                for choice in chunk["choices"]:
                    finish = choice["finish_reason"]
                if chunk.get("usage"):
                    generated = chunk["usage"]["completion_tokens"]
    return generated, finish


async def test_gateways_follow_the_load_and_no_answer_is_cut(file: Path, nats_url: str) -> None:
    gateways = Gateways()
    wire = await nats.connect(nats_url)
    await wire.subscribe("sj.v1.skipjoin.hello.gateway", cb=gateways.hello)
    settings = (f"nats.url={nats_url}", "gateway.drain_s=120")
    with await asyncio.to_thread(ServedApplication(*settings, file=file).__enter__) as app:
        await gateways.become(1)
        # From here on: before, the profiler is a receiver of tokens as well.
        await wire.subscribe("sj.v1.skipjoin.gateway.*.tokens", cb=gateways.tokens)
        async with httpx.AsyncClient(base_url=app.url, timeout=300) as client:
            load = [asyncio.create_task(answer(client, 2000)) for _ in range(4)]
            await gateways.become(2)
            while len(gateways.answering) < 2:  # the ingress learns of the second a little later
                assert await answer(client, 2) == (2, "length")
            kept = [asyncio.create_task(answer(client, 250)) for _ in range(2)]
            for task in load:  # their clients leave
                task.cancel()
            # Two answers are the load of one gateway: the other is stopped, once its own have ended.
            assert await asyncio.gather(*kept) == [(250, "length")] * 2
            await gateways.become(1)
        assert await asyncio.to_thread(app.stop) == 0, "".join(app.output)
    await wire.close()
