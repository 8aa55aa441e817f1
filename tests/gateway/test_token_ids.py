"""`return_token_ids`: every token that usage counts, once, whole and streamed."""

from typing import Any

import pytest

from services.gateway.tokenizer import Tokenizer
from tests.gateway.fakes import MODEL, FakeEngine, client_of, events_of, make_app

CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
PROMPTS: dict[str, Any] = {"model": MODEL, "prompt": ["hello", "world"], "n": 2}
COUNTS = {"stream": True, "stream_options": {"include_usage": True}}


async def ask(engine: FakeEngine, tokenizer: Tokenizer, path: str, body: dict[str, Any]) -> Any:
    async with client_of(make_app(engine, tokenizer)) as client:
        answer = await client.post(path, json=body | {"return_token_ids": True})
    assert answer.status_code == 200, answer.text
    return events_of(answer.text)[:-1] if body.get("stream") else answer.json()


@pytest.mark.parametrize("fields", [{}, {"stop": "lo th"}, {"n": 3}])
async def test_of_a_chat(engine: FakeEngine, tokenizer: Tokenizer, fields: dict[str, Any]) -> None:
    engine.say("héllo there 🎉", stop_token=1)  # most of its tokens are no whole characters
    path = "/v1/chat/completions"
    whole = await ask(engine, tokenizer, path, CHAT | fields)
    ids = [choice["token_ids"] for choice in whole["choices"]]
    assert sum(map(len, ids)) == whole["usage"]["completion_tokens"]
    assert whole["prompt_token_ids"] == engine.submitted[0].prompt

    engine.submitted.clear()
    *chunks, counts = await ask(engine, tokenizer, path, CHAT | fields | COUNTS)
    joined: list[list[int]] = [[] for _ in ids]
    for chunk in chunks:
        (choice,) = chunk["choices"]
        joined[choice["index"]] += choice["token_ids"]
    assert joined == ids and counts["usage"] == whole["usage"]
    told = [chunk["prompt_token_ids"] for chunk in chunks if "prompt_token_ids" in chunk]
    assert told == [engine.submitted[0].prompt] and "prompt_token_ids" in chunks[0]


async def test_of_several_prompts(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    whole = await ask(engine, tokenizer, "/v1/completions", PROMPTS)
    prompts = [tokenizer.encode(prompt) for prompt in ("hello", "hello", "world", "world")]
    assert [choice["prompt_token_ids"] for choice in whole["choices"]] == prompts
    chunks = await ask(engine, tokenizer, "/v1/completions", PROMPTS | {"stream": True})
    joined: list[list[int]] = [[] for _ in prompts]
    told: dict[int, list[int]] = {}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        index = choice["index"]
        if "prompt_token_ids" in choice:
            assert index not in told and not joined[index]
            told[index] = choice["prompt_token_ids"]
        joined[index] += choice["token_ids"]
    assert [told[index] for index in range(4)] == prompts
    assert joined == [choice["token_ids"] for choice in whole["choices"]]


@pytest.mark.parametrize("stream", [False, True])
async def test_not_told_unless_asked_for(engine: FakeEngine, tokenizer: Tokenizer, stream: bool) -> None:
    async with client_of(make_app(engine, tokenizer)) as client:
        for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", PROMPTS)):
            for asked in (None, False):
                answer = await client.post(path, json=body | {"stream": stream, "return_token_ids": asked})
                assert answer.status_code == 200 and "token_ids" not in answer.text
