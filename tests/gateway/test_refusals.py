"""What is refused is answered in OpenAI's form, with the field named, before any header of a stream."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import FastAPI

from services.gateway.tokenizer import Tokenizer
from shared.errors import InvalidRequest, NotReady
from shared.messages import Limits
from tests.gateway.fakes import MODEL, FakeEngine, byte_level_backend, client_of, make_app

CHAT_PATH, COMPLETION_PATH = "/v1/chat/completions", "/v1/completions"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"model": MODEL, "prompt": "hi"}
VOCABULARY = byte_level_backend().get_vocab_size() + 7


@pytest.fixture
def app(engine: FakeEngine, tokenizer: Tokenizer) -> FastAPI:
    assert tokenizer.vocab_size == VOCABULARY
    return make_app(engine, tokenizer)


async def refusal(app: FastAPI, path: str, body: Any, status: int = 400) -> dict[str, Any]:
    """The error object; the same with and without `stream`."""
    errors: list[dict[str, Any]] = []
    async with client_of(app) as client:
        for stream in (False, True):
            answer = await client.post(path, json=body | {"stream": stream})
            assert answer.status_code == status, answer.text
            assert answer.headers["content-type"] == "application/json"
            (error,) = answer.json().values()
            assert set(error) == {"message", "type", "param", "code"}
            errors.append(error)
    assert errors[0] == errors[1]
    return errors[0]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        # sampling, shared by both endpoints
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1, got 0"),
        ({"max_tokens": -1}, "max_tokens", "got -1"),
        ({"max_tokens": 1.5}, "max_tokens", "got 1.5"),
        ({"max_tokens": "1"}, "max_tokens", "got '1'"),
        ({"max_tokens": True}, "max_tokens", "got True"),
        ({"max_tokens": 10**30}, "max_tokens", "at most"),
        ({"temperature": 2.1}, "temperature", "less than or equal to 2"),
        ({"temperature": -0.1}, "temperature", "greater than or equal to 0"),
        ({"temperature": True}, "temperature", "number"),
        ({"temperature": "0.5"}, "temperature", "number"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"top_p": 1.01}, "top_p", "less than or equal to 1"),
        ({"top_k": -2}, "top_k", "greater than or equal to -1"),
        ({"seed": 2**63}, "seed", "less than"),
        ({"seed": 1.5}, "seed", "integer"),
        ({"stop": ""}, "stop", "at least 1 character"),
        ({"stop": ["a", ""]}, "stop[1]", "at least 1 character"),
        ({"stop": ["a"] * 5}, "stop", "stop: at most 4 items"),
        ({"stop": 5}, "stop", "string or must be a valid list"),
        ({"stop_token_ids": [1, VOCABULARY]}, "stop_token_ids", f"0 to {VOCABULARY - 1}"),
        ({"stop_token_ids": [-1]}, "stop_token_ids", "token id -1"),
        ({"stop_token_ids": ["1"]}, "stop_token_ids[0]", "integer"),
        ({"ignore_eos": 1}, "ignore_eos", "boolean"),
        ({"n": 0}, "n", "greater than or equal to 1, got 0"),
        ({"n": 129}, "n", "less than or equal to 128"),
        ({"n": True}, "n", "integer"),
        ({"min_p": 1.1}, "min_p", "less than or equal to 1"),
        ({"presence_penalty": 2.1}, "presence_penalty", "less than or equal to 2, got 2.1"),
        ({"frequency_penalty": -2.1}, "frequency_penalty", "greater than or equal to -2"),
        ({"repetition_penalty": 0}, "repetition_penalty", "greater than 0"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "less than or equal to 100, got 101"),
        ({"logit_bias": {"5": "1"}}, "logit_bias", "number"),
        ({"logit_bias": {str(VOCABULARY): 1}}, "logit_bias", f"{VOCABULARY} is outside of the vocabulary (0"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "token id -1 is outside"),
        ({"logit_bias": {"five": 1}}, "logit_bias", "'five' is no token id"),
        ({"logit_bias": {str(token): 1 for token in range(301)}}, "logit_bias", "at most 300"),
        ({"logit_bias": [5]}, "logit_bias", "dictionary"),
        ({"min_tokens": -1}, "min_tokens", "greater than or equal to 0"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens", "5 is more than the longest answer, 4 tokens"),
        ({"user": 5}, "user", "string"),
        ({"model": None}, "model", "string"),
        # not supported yet: named, with what is accepted
        ({"length_penalty": 2}, "length_penalty", "not supported yet (accepted: 1), got 2"),
        ({"length_penalty": True}, "length_penalty", "not supported"),
        (
            {"n": 2, "best_of": 3},
            "best_of",
            "not supported yet but for n (2), since no answer is left out, got 3",
        ),
        ({"best_of": 2}, "best_of", "n (1)"),
        ({"structured_outputs": {"json": {}}}, "structured_outputs", "not supported"),
        ({"priority": 101}, "priority", "100"),
        ({"temperatur": 1}, "temperatur", "unknown field"),
        ({"f" * 300: 1}, "f" * 300, "unknown field"),
    ],
)
async def test_wrong_fields(app: FastAPI, fields: dict[str, Any], param: str, words: str) -> None:
    for path, body in ((CHAT_PATH, CHAT), (COMPLETION_PATH, COMPLETION)):
        error = await refusal(app, path, body | fields)
        assert error["param"] == param and words in error["message"] and param in error["message"]
        assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": []}, "prompt", "empty"),
        ({"prompt": [[]]}, "prompt", "empty"),
        ({"prompt": [""]}, "prompt", "empty"),
        ({"prompt": None}, "prompt", "must be"),
        ({"prompt": 5}, "prompt", "must be a valid string or must be a valid list"),
        ({"prompt": [1, True]}, "prompt[1]", "integer"),
        ({"prompt": [1.0]}, "prompt[0]", "integer"),
        ({"prompt": [1, -1]}, "prompt", "prompt[1]: token id -1"),
        ({"prompt": [VOCABULARY]}, "prompt", f"0 to {VOCABULARY - 1}"),
        ({"prompt": [10**40]}, "prompt", "vocabulary"),
        ({"prompt": ["a", ""]}, "prompt", "prompt[1]: it is empty"),
        ({"prompt": [[1], []]}, "prompt", "prompt[1]: it is empty"),
        ({"prompt": [[1], [2, VOCABULARY]]}, "prompt", "prompt[1][1]: token id"),
        ({"prompt": ["a", [1]]}, "prompt[0]", "prompt[0]"),
        ({"prompt": ["a", "b " * 200]}, "prompt", "prompt[1]"),
        ({"prompt": ["a"] * 9, "n": 128}, "prompt", "9 prompts and n = 128 make 1152 answers; at most 1024"),
        ({"echo": True, "logprobs": 1}, "echo", "not supported yet together with logprobs"),
        ({"echo": "yes"}, "echo", "boolean"),
        ({"logprobs": 6}, "logprobs", "less than or equal to 5"),
        ({"logprobs": True}, "logprobs", "integer"),
        ({"suffix": "x"}, "suffix", "not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format", "not supported"),
        ({"max_completion_tokens": 5}, "max_completion_tokens", "unknown field"),
        ({"messages": []}, "messages", "unknown field"),
    ],
)
async def test_wrong_completions(app: FastAPI, fields: dict[str, Any], param: str, words: str) -> None:
    error = await refusal(app, COMPLETION_PATH, COMPLETION | fields)
    assert error["param"] == param and words in error["message"]


def turn(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"} | fields]}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": None}, "messages", "list"),
        ({"messages": "hi"}, "messages", "list"),
        ({"messages": ["hi"]}, "messages[0]", "must be an object"),
        (turn(role="wizard"), "messages[0].role", "'system', 'developer', 'user', 'assistant' or 'tool'"),
        (turn(content=None), "messages[0].content", "required"),
        (turn(content=5), "messages[0].content", "string"),
        (turn(content=[]), "messages[0].content", "at least 1"),
        (turn(content=[{"type": "image_url", "image_url": {}}]), "messages[0].content[0].type", "'text'"),
        (turn(content=[{"type": "text"}]), "messages[0].content[0].text", "required"),
        (turn(name="me"), "messages[0].name", "not supported"),
        (turn(tool_calls=[{}]), "messages[0].tool_calls[0].id", "required"),
        (turn(colour="red"), "messages[0].colour", "unknown field"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "required"),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]},
            "messages",
            "system must come first",
        ),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "greater than or equal to 1"),
        (
            {"max_completion_tokens": 3, "max_tokens": 4},
            "max_completion_tokens",
            "differs from max_tokens (4)",
        ),
        ({"logprobs": 2}, "logprobs", "boolean"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "less than or equal to 20"),
        ({"top_logprobs": 2}, "top_logprobs", "only allowed with logprobs: true"),
        ({"echo": True}, "echo", "not supported"),
        ({"functions": [{"name": "f"}]}, "functions", "not supported"),
        ({"prompt": "x"}, "prompt", "unknown field"),
    ],
)
async def test_wrong_chats(app: FastAPI, fields: dict[str, Any], param: str, words: str) -> None:
    error = await refusal(app, CHAT_PATH, CHAT | fields)
    assert error["param"] == param and words in error["message"]


async def test_stream_options(app: FastAPI) -> None:
    async with client_of(app) as client:
        for options, param in (
            ({"include_usage": 1}, "stream_options.include_usage"),
            ({"include_obfuscation": True}, "stream_options.include_obfuscation"),
            ({"usage": True}, "stream_options.usage"),
        ):
            body = CHAT | {"stream": True, "stream_options": options}
            answer = await client.post(CHAT_PATH, json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        answer = await client.post(CHAT_PATH, json=CHAT | {"stream_options": {"include_usage": True}})
        assert answer.status_code == 400 and "stream: true" in answer.json()["error"]["message"]


async def test_an_unknown_model(app: FastAPI) -> None:
    error = await refusal(app, CHAT_PATH, CHAT | {"model": "gpt-4"}, 404)
    assert error["code"] == "model_not_found" and error["param"] == "model" and MODEL in error["message"]
    async with client_of(app) as client:
        answer = await client.get("/v1/models/gpt-4")
        assert answer.status_code == 404 and answer.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (Limits(20, 100), "context of 20 tokens (max_model_len)"),
        (Limits(100, 20), "KV cache, which holds 20"),
    ],
)
async def test_lengths_quote_the_right_limit(
    engine: FakeEngine, app: FastAPI, limits: Limits, words: str
) -> None:
    engine.limits = limits
    too_long = await refusal(app, COMPLETION_PATH, COMPLETION | {"prompt": [5] * 20})
    assert (too_long["param"], too_long["code"]) == ("prompt", "context_length_exceeded")
    assert words in too_long["message"] and "20 tokens and at least one" in too_long["message"]

    too_much = await refusal(app, COMPLETION_PATH, COMPLETION | {"prompt": [5] * 15, "max_tokens": 6})
    assert too_much["param"] == "max_tokens" and words in too_much["message"]
    assert "ask for at most 5" in too_much["message"]

    chat = await refusal(app, CHAT_PATH, CHAT | turn(content="x" * 50))
    assert chat["param"] == "messages" and words in chat["message"]
    newer = await refusal(app, CHAT_PATH, CHAT | turn(content="") | {"max_completion_tokens": 99})
    assert newer["param"] == "max_completion_tokens"
    assert engine.submitted == []

    async with client_of(app) as client:
        exact = {"prompt": [5] * 15, "max_tokens": 5}
        assert (await client.post(COMPLETION_PATH, json=COMPLETION | exact)).status_code == 200
        unnamed = await client.post(COMPLETION_PATH, json=COMPLETION | {"prompt": [5] * 15})
        assert unnamed.status_code == 200  # the default of 16 gives way to what fits
    assert [submit.max_tokens for submit in engine.submitted] == [5, 5]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "empty"),
        (b"{", "not valid JSON"),
        (b"[]", "must be an object"),
        (b'"hi"', "must be an object"),
        (b'{"model": "tiny", "prompt": "hi", "temperature": NaN}', "NaN is no JSON value"),
        (b'{"model": "tiny", "prompt": "hi", "temperature": -Infinity}', "-Infinity"),
        (b'{"model": "tiny", "prompt": "hi", "temperature": 1e999}', "temperature"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b"[" * 10_000, "nested too deeply"),
        (b'{"model": "\xff"}', "utf-8"),
        (b'{"model": "tiny", "prompt": "a\xed\xa0\x80"}', "utf-8"),
        (b'{"model": "tiny", "prompt": "a\\ud83d b"}', "prompt: it holds half of a surrogate pair"),
        (b'{"model": "tiny", "prompt": ["\\uDC00"]}', "prompt[0]"),
        (b'{"model": "tiny", "prompt": "a", "\\ud800": 1}', "a field's name"),
        (b'{"model": "tiny", "prompt": "a", "stop": ["\\ud800"]}', "stop[0]"),
    ],
)
async def test_bad_bodies(app: FastAPI, raw: bytes, words: str) -> None:
    async with client_of(app) as client:
        headers = {"content-type": "application/json"}
        answer = await client.post(COMPLETION_PATH, content=raw, headers=headers)
    assert answer.status_code == 400 and words in answer.json()["error"]["message"], answer.text


@pytest.mark.parametrize("depth", [10, 200, 500, 700, 800, 850, 900, 950])
@pytest.mark.parametrize("name", ["prompt", "stop", "stop_token_ids", "logit_bias", "unknown", "temperature"])
async def test_nesting_is_refused_at_any_depth(app: FastAPI, name: str, depth: int) -> None:
    raw = b'{"model": "\\u0074iny\\ud83c\\udf89", "%b": %b%b}' % (name.encode(), b"[" * depth, b"]" * depth)
    async with client_of(app) as client:
        headers = {"content-type": "application/json"}
        answer = await client.post(COMPLETION_PATH, content=raw, headers=headers)
    assert answer.status_code == 400 and len(answer.text) < 1000


async def test_a_whole_surrogate_pair_is_a_character(engine: FakeEngine, app: FastAPI) -> None:
    async with client_of(app) as client:
        raw = b'{"model": "tiny", "prompt": "\\ud83c\\udf89"}'
        answer = await client.post(
            COMPLETION_PATH, content=raw, headers={"content-type": "application/json; charset=utf-8"}
        )
    assert answer.status_code == 200 and len(engine.submitted) == 1


async def test_bodies_that_are_too_large_or_no_json(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    async def in_parts(count: int) -> AsyncIterator[bytes]:
        for _ in range(count):
            yield b" " * 100

    headers = {"content-type": "application/json"}
    async with client_of(make_app(engine, tokenizer, max_body_bytes=1000)) as client:
        declared = await client.post(COMPLETION_PATH, content=b" " * 1001, headers=headers)
        counted = await client.post(COMPLETION_PATH, content=in_parts(11), headers=headers)
        fits = await client.post(COMPLETION_PATH, json=COMPLETION)
        form = await client.post(COMPLETION_PATH, data={"model": MODEL})
    assert [declared.status_code, counted.status_code, fits.status_code] == [413, 413, 200]
    assert declared.json()["error"]["code"] == "request_too_large" and "1000 bytes" in counted.text
    assert form.status_code == 415 and "application/json" in form.json()["error"]["message"]


async def test_wrong_paths_and_methods(app: FastAPI) -> None:
    async with client_of(app) as client:
        for answer, status, words in (
            (await client.get("/nowhere"), 404, "GET /nowhere"),
            (await client.post("/v1/embeddings", json={}), 404, "POST /v1/embeddings"),
            (await client.get(CHAT_PATH), 405, f"GET {CHAT_PATH}"),
            (await client.delete("/health"), 405, "DELETE"),
            (await client.post(f"{CHAT_PATH}/", json=CHAT), 404, CHAT_PATH),
        ):
            error = answer.json()["error"]
            assert answer.status_code == status and words in error["message"]
            assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("OPTIONS", "/v1/requests/x", "DELETE, GET"),
        ("PUT", CHAT_PATH, "POST"),
        ("POST", "/v1/models/x", "GET"),
    ],
)
async def test_a_wrong_method_is_told_all_right_ones(
    app: FastAPI, method: str, path: str, allowed: str
) -> None:
    async with client_of(app) as client:
        answer = await client.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


async def test_not_ready_is_503_with_retry_after(engine: FakeEngine, app: FastAPI) -> None:
    engine.ready = (False, "loading the model")
    async with client_of(app) as client:
        for stream in (False, True):
            answer = await client.post(CHAT_PATH, json=CHAT | {"stream": stream})
            assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
            assert "loading the model" in answer.json()["error"]["message"]
        ready = await client.get("/ready")
        assert (ready.status_code, ready.json()["reason"]) == (503, "loading the model")
        assert (await client.get("/health")).status_code == 200
        assert (await client.post(CHAT_PATH, json=CHAT | {"top_k": "x"})).status_code == 400
    engine.ready = (True, "")
    async with client_of(app) as client:
        assert (await client.get("/ready")).status_code == 200


@pytest.mark.parametrize(
    ("raised", "status"),
    [(NotReady("no scheduler"), 503), (InvalidRequest("refused", param="prompt"), 400), (KeyError("x"), 500)],
)
async def test_refusals_of_the_engine_come_before_headers(
    engine: FakeEngine, app: FastAPI, raised: Exception, status: int
) -> None:
    engine.refusal = raised
    await refusal(app, CHAT_PATH, CHAT, status)


async def test_models(app: FastAPI) -> None:
    async with client_of(app) as client:
        (model,) = (await client.get("/v1/models")).json()["data"]
        assert (model["id"], model["object"], model["max_model_len"]) == (MODEL, "model", 256)
        assert (await client.get(f"/v1/models/{MODEL}")).json() == model


async def test_openapi_describes_the_bodies(app: FastAPI) -> None:
    async with client_of(app) as client:
        spec = (await client.get("/openapi.json")).json()
    operation = spec["paths"][CHAT_PATH]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/ChatRequest"}
    assert spec["components"]["schemas"]["ChatRequest"]["additionalProperties"] is False
    assert "422" not in operation["responses"] and "4XX" in operation["responses"]
    assert "text/event-stream" in operation["responses"]["200"]["content"]
