"""/tokenize, /detokenize and /version."""

from importlib.metadata import version
from typing import Any

import pytest

from services.gateway.tokenizer import Tokenizer
from tests.gateway.fakes import BOS, MODEL, FakeEngine, client_of, make_app

TURNS = [{"role": "user", "content": "héllo 🎉"}]


@pytest.mark.parametrize(
    ("source", "path"),
    [({"prompt": "héllo 🎉"}, "/v1/completions"), ({"messages": TURNS}, "/v1/chat/completions")],
)
async def test_what_it_counts_is_what_is_generated_from(
    engine: FakeEngine, tokenizer: Tokenizer, source: dict[str, Any], path: str
) -> None:
    async with client_of(make_app(engine, tokenizer)) as client:
        answer = (await client.post("/tokenize", json=source | {"model": MODEL})).json()
        assert (await client.post(path, json=source | {"model": MODEL})).status_code == 200
        assert answer["tokens"] == engine.submitted[0].prompt
        assert (answer["count"], answer["max_model_len"]) == (len(answer["tokens"]), 256)
        assert answer["token_strs"] is None
        back = await client.post("/detokenize", json={"tokens": answer["tokens"]})
        assert back.json()["prompt"].startswith(BOS) and "héllo 🎉" in back.json()["prompt"]


async def test_tokens_written_out_and_without_special_ones(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    body = {"prompt": "hello 中", "add_special_tokens": False, "return_token_strs": True}
    async with client_of(make_app(engine, tokenizer)) as client:
        answer = (await client.post("/tokenize", json=body)).json()
        assert answer["tokens"] == tokenizer.encode("hello 中")[1:]
        assert answer["token_strs"][0].startswith("h") and len(answer["token_strs"]) == answer["count"]
        back = await client.post("/detokenize", json={"tokens": answer["tokens"]})
        assert back.json() == {"prompt": "hello 中"}


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": TURNS}, 400, "prompt"),
        ("/tokenize", {"messages": TURNS, "add_special_tokens": True}, 400, "add_special_tokens"),
        ("/tokenize", {"messages": TURNS, "add_generation_prompt": False}, 400, "add_generation_prompt"),
        ("/tokenize", {"messages": TURNS, "add_generation_prompt": 1}, 400, "add_generation_prompt"),
        ("/tokenize", {"prompt": "a", "model": "gpt-4"}, 404, "model"),
        ("/tokenize", {"prompt": "a", "x": 1}, 400, "x"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens"),
        ("/detokenize", {"tokens": [10**30]}, 400, "tokens"),
        ("/detokenize", {"tokens": [1.5]}, 400, "tokens[0]"),
        ("/detokenize", {}, 400, "tokens"),
    ],
)
async def test_refusals(
    engine: FakeEngine, tokenizer: Tokenizer, path: str, body: dict[str, Any], status: int, param: str
) -> None:
    async with client_of(make_app(engine, tokenizer)) as client:
        answer = await client.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


async def test_nothing_gives_nothing_and_loading_does_not_matter(
    engine: FakeEngine, tokenizer: Tokenizer
) -> None:
    engine.ready, engine.limits = (False, "loading"), None
    async with client_of(make_app(engine, tokenizer)) as client:
        answer = await client.post("/tokenize", json={"prompt": "", "add_special_tokens": False})
        assert answer.json() == {"count": 0, "max_model_len": None, "tokens": [], "token_strs": None}
        assert (await client.post("/detokenize", json={"tokens": []})).json() == {"prompt": ""}


async def test_the_version(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    async with client_of(make_app(engine, tokenizer)) as client:
        assert (await client.get("/version")).json() == {"version": version("skipjoin")}
