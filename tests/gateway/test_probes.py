"""Being busy is not being ill, and what cannot be answered is said before any header of a stream."""

import asyncio
import threading
from typing import Any

import pytest

from services.gateway.tokenizer import Tokenizer
from tests.gateway.fakes import MODEL, FakeEngine, client_of, make_app

LONG = "word " * 400


async def test_a_gateway_that_tokenises_answers_its_probes(
    engine: FakeEngine, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, end = threading.Event(), threading.Event()
    encode = tokenizer.encode

    def slow(text: str, **options: Any) -> list[int]:
        begun.set()
        assert end.wait(30)
        return encode(text, **options)

    monkeypatch.setattr(tokenizer, "encode", slow)
    async with client_of(make_app(engine, tokenizer)) as client:
        body = {"model": MODEL, "prompt": "hi"}
        asked = [
            asyncio.create_task(client.post(path, json=body)) for path in ("/v1/completions", "/tokenize")
        ]
        await asyncio.to_thread(begun.wait, 30)
        for path in ("/health", "/ready", "/metrics"):
            assert (await asyncio.wait_for(client.get(path), 10)).status_code == 200
        end.set()
        assert [answer.status_code for answer in await asyncio.gather(*asked)] == [200, 200]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": LONG}, "prompt"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}, "messages"),
        ("/v1/responses", {"input": LONG}, "input"),
    ],
)
async def test_an_over_long_prompt_is_refused_before_any_header_of_a_stream(
    engine: FakeEngine, tokenizer: Tokenizer, path: str, body: dict[str, Any], param: str
) -> None:
    async with client_of(make_app(engine, tokenizer)) as client:
        answer = await client.post(path, json=body | {"model": MODEL, "stream": True})
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/json")
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param, "context_length_exceeded")
    assert engine.submitted == []
