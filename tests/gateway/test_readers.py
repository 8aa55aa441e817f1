"""Clients that do not read, over real sockets: bounded, no bother to others, and cut off in the end."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import httpx
import pytest

from services.gateway.tokenizer import Tokenizer
from shared.ids import JobId
from shared.messages import FinishReason, JobTokens, Submit
from shared.metrics import Registry
from tests.gateway.fakes import MODEL, FakeEngine
from tests.gateway.server import served
from tests.gateway.test_bus_engine import connected, running

CHUNKS = 20_000
PATH = "/v1/completions"
BODY: dict[str, Any] = {"model": MODEL, "prompt": "hi", "max_tokens": 100}


class Talker(FakeEngine):
    """Has a token whenever it is asked for one, and never ends; tells of the job's end."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self.token = tokenizer.encode("hello")[-1]
        self.taken = 0
        self.ended = asyncio.Event()

    async def generate(self, submit: Submit, trace: str | None) -> AsyncGenerator[JobTokens]:
        if submit.max_tokens < 100:
            async for item in super().generate(submit, trace):
                yield item
            return
        try:
            yield JobTokens(JobId(submit.job_id), 0, [])
            while True:
                await asyncio.sleep(0)
                yield JobTokens(JobId(submit.job_id), self.taken, [self.token])
                self.taken += 1
        finally:
            self.ended.set()


@contextlib.asynccontextmanager
async def raw_request(url: str, body: dict[str, Any]) -> AsyncIterator[socket.socket]:
    """A request sent over a socket with a small buffer, whose answer nobody reads yet."""
    payload = json.dumps(body).encode()
    head = (
        f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(payload)}\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await loop.sock_connect(client, ("127.0.0.1", httpx.URL(url).port))
        await loop.sock_sendall(client, head.encode() + payload)
        yield client


async def read_to_end(client: socket.socket) -> int:
    """Bytes until the connection is over, however it ends."""
    loop, count = asyncio.get_running_loop(), 0
    with contextlib.suppress(ConnectionResetError):
        while data := await loop.sock_recv(client, 65536):
            count += len(data)
    return count


async def test_a_client_that_does_not_read_is_cut_off_and_others_do_not_notice(tokenizer: Tokenizer) -> None:
    engine, registry = Talker(tokenizer), Registry()
    async with (
        served(engine, tokenizer, registry=registry, reader_timeout_s=0.3, max_queued_requests=2) as url,
        raw_request(url, BODY | {"stream": True}) as stuck,
        httpx.AsyncClient(base_url=url, timeout=30) as other,
    ):
        while not engine.ended.is_set():
            answer = await other.post("/completions", json=BODY | {"max_tokens": 5})
            assert answer.status_code == 200
        taken = engine.taken
        assert await read_to_end(stuck) < 4_000_000
        assert engine.taken == taken < CHUNKS  # what the buffers hold, then it waited
        # Its place is free again, too.
        async with raw_request(url, BODY | {"stream": True}):
            assert (await other.post("/completions", json=BODY | {"max_tokens": 5})).status_code == 200
    labels = {"endpoint": PATH, "outcome": "abort", "status": "200"}
    assert (registry.collector.get_sample_value("skipjoin_requests_total", labels) or 0) >= 1


async def test_a_whole_answer_that_nobody_takes_gives_its_place_back(
    engine: FakeEngine, tokenizer: Tokenizer
) -> None:
    registry = Registry()
    engine.script = [[5] * 400_000]
    labels = {"endpoint": PATH, "outcome": "abort", "status": "200"}
    async with (
        served(engine, tokenizer, registry=registry, reader_timeout_s=0.2) as url,
        raw_request(url, BODY) as stuck,
        httpx.AsyncClient(base_url=url) as other,
    ):
        async with asyncio.timeout(30):
            while not registry.collector.get_sample_value("skipjoin_requests_total", labels):
                await other.get("/models")
        assert await read_to_end(stuck) < 400_000


async def test_tokens_that_come_while_nobody_takes_them_travel_together() -> None:
    async with connected() as rig, running(rig) as items:
        for position in range(500):
            rig.tokens(position, [10])
        rig.tokens(500, [2], FinishReason.STOP)
        await rig.settle()
        deliveries = [item async for item in items]
    assert len(deliveries) <= 2 and sum(len(item.tokens) for item in deliveries) == 501


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_reads_is_never_cut_off(
    engine: FakeEngine, tokenizer: Tokenizer, stream: bool
) -> None:
    engine.script = [[5]] * 50
    async with (
        served(engine, tokenizer, reader_timeout_s=0.2) as url,
        httpx.AsyncClient(base_url=url) as client,
    ):
        answer = await client.post("/completions", json=BODY | {"stream": stream})
    assert answer.status_code == 200 and "length" in answer.text
