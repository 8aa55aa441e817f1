"""Limits of one request: each refusal names field, value and limit, and nothing is submitted."""

from typing import Any

import pytest

from services.gateway.tokenizer import Tokenizer
from tests.gateway.fakes import MODEL, FakeEngine, client_of, make_app

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello " * 9}]}
COMPLETION = {"model": MODEL, "prompt": "hi"}


@pytest.mark.parametrize(
    ("path", "body", "gateway", "param", "words"),
    [
        ("chat/completions", CHAT | {"n": 5}, {"max_choices": 4}, "n", "at most 4 .*got 5"),
        ("completions", COMPLETION | {"n": 5}, {"max_choices": 4}, "n", "at most 4 .*got 5"),
        (
            "completions",
            COMPLETION | {"prompt": ["a", "b", "c"], "n": 2},
            {"max_choices": 5},
            "prompt",
            "3 prompts and n = 2 make 6 answers; at most 5 .*gateway.max_choices",
        ),
        ("chat/completions", CHAT, {"max_prompt_tokens": 10}, "messages", r"\d+ tokens; at most 10 "),
        (
            "completions",
            COMPLETION | {"prompt": [[1, 2], [1] * 11]},
            {"max_prompt_tokens": 10},
            "prompt",
            "11 tokens; at most 10 .*gateway.max_prompt_tokens",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_asks_for_too_much_is_refused(
    engine: FakeEngine,
    tokenizer: Tokenizer,
    path: str,
    body: dict[str, Any],
    gateway: dict[str, Any],
    param: str,
    words: str,
    stream: bool,
) -> None:
    async with client_of(make_app(engine, tokenizer, **gateway)) as client:
        answer = await client.post(f"/v1/{path}", json=body | {"stream": stream})
    assert answer.status_code == 400 and engine.submitted == []
    error = answer.json()["error"]
    assert error["param"] == param
    with pytest.raises(ValueError, match=words):
        raise ValueError(error["message"])


async def test_what_is_just_allowed_is_served(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    body = COMPLETION | {"prompt": [[1] * 10, [2] * 10], "n": 2}
    async with client_of(make_app(engine, tokenizer, max_choices=4, max_prompt_tokens=10)) as client:
        assert (await client.post("/v1/completions", json=body)).status_code == 200
    assert len(engine.submitted) == 4


async def test_large_headers_are_refused(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    async with client_of(make_app(engine, tokenizer, max_header_bytes=2048)) as client:
        assert (await client.get("/v1/models", headers={"x-big": "a" * 1000})).status_code == 200
        answer = await client.get("/v1/models", headers={"x-big": "a" * 2048})
    assert answer.status_code == 431
    message = answer.json()["error"]["message"]
    assert "at most 2048" in message and "gateway.max_header_bytes" in message
