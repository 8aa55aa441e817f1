"""A client that leaves: the job is aborted exactly once, and nothing is left counted as open."""

import asyncio
import json
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.types import Message

from services.gateway.tokenizer import Tokenizer
from shared.metrics import Registry
from tests.gateway.fakes import MODEL, FakeEngine, make_app

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


class Client:
    """One raw ASGI exchange whose client can leave."""

    def __init__(self, app: FastAPI, body: dict[str, Any] | None, path: str = "/v1/chat/completions") -> None:
        self.sent: list[Message] = []
        self.started = asyncio.Event()
        self.first_event = asyncio.Event()
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        if body is not None:
            self._incoming.put_nowait({"type": "http.request", "body": json.dumps(body).encode()})
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"content-type", b"application/json")],
        }
        self.task = asyncio.ensure_future(app(scope, self._incoming.get, self._send))

    async def _send(self, message: Message) -> None:
        self.sent.append(message)
        self.started.set()
        if message.get("body"):
            self.first_event.set()

    def leave(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})


def value(registry: Registry, name: str, **labels: str) -> float | None:
    return registry.collector.get_sample_value(name, labels)


@pytest.mark.parametrize("how", ["disconnect", "cancelled by the server"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("first", [[[5]], []], ids=["after a token", "before any token"])
@pytest.mark.parametrize("n", [1, 3])
async def test_leaving_aborts_once(
    engine: FakeEngine, tokenizer: Tokenizer, how: str, stream: bool, first: list[list[int]], n: int
) -> None:
    registry = Registry()
    engine.script = [*first, asyncio.Event(), [6]]
    client = Client(make_app(engine, tokenizer, registry=registry), CHAT | {"stream": stream, "n": n})
    await engine.waiting.wait()
    if stream:  # all choices were accepted
        await client.started.wait()
    assert value(registry, "skipjoin_open_requests") == 1
    if how == "disconnect":
        client.leave()
    else:
        client.task.cancel()
    await asyncio.wait([client.task])

    assert len(engine.submitted) == n
    assert sorted(engine.aborted) == sorted(submit.job_id for submit in engine.submitted)
    assert value(registry, "skipjoin_open_requests") == 0
    status = "200" if stream else ("499" if how == "disconnect" else "0")
    labels = {"endpoint": "/v1/chat/completions", "outcome": "abort", "status": status}
    assert value(registry, "skipjoin_requests_total", **labels) == 1
    assert client.task.cancelled() == (how != "disconnect")


async def test_many_leave_at_once_and_the_gauge_returns_to_zero(
    engine: FakeEngine, tokenizer: Tokenizer
) -> None:
    registry = Registry()
    engine.script = [[5], asyncio.Event(), [6]]
    app = make_app(engine, tokenizer, registry=registry)
    clients = [Client(app, CHAT | {"stream": True}) for _ in range(20)]
    for client in clients:
        await client.first_event.wait()
    assert value(registry, "skipjoin_open_requests") == 20
    for client in clients:
        client.leave()
    await asyncio.wait([client.task for client in clients])
    assert value(registry, "skipjoin_open_requests") == 0
    assert sorted(engine.aborted) == sorted(submit.job_id for submit in engine.submitted)
    assert all(client.task.exception() is None for client in clients)


async def test_leaving_before_the_body_was_sent(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    registry = Registry()
    client = Client(make_app(engine, tokenizer, registry=registry), None)
    client.leave()
    await client.task
    labels = {"endpoint": "/v1/chat/completions", "outcome": "abort", "status": "499"}
    assert value(registry, "skipjoin_requests_total", **labels) == 1 and engine.submitted == []


async def test_a_finished_answer_aborts_nothing(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    client = Client(make_app(engine, tokenizer), CHAT | {"stream": True})
    await client.first_event.wait()
    client.leave()
    await client.task
    assert client.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    assert engine.aborted == []


async def test_the_first_token_is_sent_while_the_second_is_awaited(
    engine: FakeEngine, tokenizer: Tokenizer
) -> None:
    (token,) = tokenizer.encode("a")[1:]
    go_on = asyncio.Event()
    engine.script = [[token], go_on, [token]]
    client = Client(make_app(engine, tokenizer), CHAT | {"stream": True})
    await engine.waiting.wait()
    await client.first_event.wait()
    assert b'"content":"a"' in client.sent[1]["body"]
    go_on.set()
    await client.task
