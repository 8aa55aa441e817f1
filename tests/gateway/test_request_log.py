"""The log of a request: exactly one line for each step of its life, whatever becomes of it, and no prompt."""

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from services.gateway.api import create_app
from services.gateway.tokenizer import Tokenizer
from shared.config import Config, GatewayConfig, LoggingConfig, ModelConfig
from shared.errors import GenerationFailed, InvalidRequest, NotReady
from shared.metrics import Registry
from tests.gateway.fakes import MODEL, FakeEngine, client_of, make_app
from tests.gateway.test_disconnect import Client
from tests.gateway.test_keys import key, ring

PATH = "/v1/completions"
COMPLETION: dict[str, Any] = {"model": MODEL, "prompt": "hi", "request_id": "mine"}
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
HEADERS = {"traceparent": f"00-{TRACE_ID}-b7ad6b7169203331-01"}
RECEIVED, ACCEPTED, FIRST = "request received", "request accepted", "request first token"


class Lines(logging.Handler):
    """Of the gateway, with their fields."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def steps(self) -> list[str]:
        return [record.getMessage() for record in self.records]

    def fields(self, number: int) -> dict[str, Any]:
        return self.records[number].fields  # type: ignore[attr-defined]


@pytest.fixture
def lines() -> Iterator[Lines]:
    logger, handler = logging.getLogger("skipjoin.gateway"), Lines()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(before)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
async def test_a_request_that_is_answered(
    engine: FakeEngine, tokenizer: Tokenizer, lines: Lines, stream: bool, n: int
) -> None:
    async with client_of(make_app(engine, tokenizer)) as client:
        await client.post(PATH, json=COMPLETION | {"stream": stream, "n": n}, headers=HEADERS)
    assert lines.steps == [RECEIVED, ACCEPTED, FIRST, "request finished"]
    for number in range(4):
        fields = lines.fields(number)
        assert (fields["request_id"], fields["trace_id"]) == ("mine", TRACE_ID)
    received, accepted, _, finished = map(lines.fields, range(4))
    assert (received["endpoint"], received["stream"], received["choices"]) == (PATH, stream, n)
    assert accepted["jobs"] == [f"{each.job_id:016x}" for each in engine.submitted]
    assert accepted["prompt_tokens"] == len(engine.submitted[0].prompt) and accepted["prompts"] is None
    assert (finished["outcome"], finished["status"], finished["cause"]) == ("length", 200, None)
    assert finished["completion_tokens"] == n * sum(map(len, engine.script))  # type: ignore[arg-type]
    assert 0 < accepted["seconds"] <= lines.fields(2)["seconds"] <= finished["seconds"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("tokens", [[], [[5]]], ids=["before a token", "after a token"])
async def test_a_request_that_fails(
    engine: FakeEngine, tokenizer: Tokenizer, lines: Lines, stream: bool, tokens: list[list[int]]
) -> None:
    engine.script = [*tokens, GenerationFailed("stage 0 died")]
    async with client_of(make_app(engine, tokenizer)) as client:
        await client.post(PATH, json=COMPLETION | {"stream": stream})
    assert lines.steps == [RECEIVED, ACCEPTED, *[FIRST] * len(tokens), "request failed"]
    assert lines.records[-1].levelno == logging.ERROR
    assert lines.fields(-1)["cause"] == "the generation failed: stage 0 died"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("tokens", [[], [[5]]], ids=["before a token", "after a token"])
async def test_a_request_whose_client_leaves(
    engine: FakeEngine, tokenizer: Tokenizer, lines: Lines, stream: bool, tokens: list[list[int]]
) -> None:
    engine.script = [*tokens, asyncio.Event(), [6]]
    client = Client(make_app(engine, tokenizer), COMPLETION | {"stream": stream}, PATH)
    await engine.waiting.wait()
    client.leave()
    await client.task
    assert lines.steps == [RECEIVED, ACCEPTED, *[FIRST] * len(tokens), "request aborted"]


async def test_a_request_that_is_cancelled_by_its_id(
    engine: FakeEngine, tokenizer: Tokenizer, lines: Lines
) -> None:
    engine.script = [[5], asyncio.Event(), [6]]
    async with client_of(make_app(engine, tokenizer)) as client:
        asking = asyncio.create_task(client.post(PATH, json=COMPLETION))
        await engine.waiting.wait()
        await client.delete("/v1/requests/mine")
        await asking
    assert lines.steps == [RECEIVED, ACCEPTED, FIRST, "request aborted"]
    assert (lines.fields(-1)["status"], lines.fields(-1)["cause"]) == (499, "the request was cancelled")


async def test_a_request_whose_deadline_passes(
    engine: FakeEngine, tokenizer: Tokenizer, lines: Lines
) -> None:
    engine.script = [asyncio.Event(), [6]]
    async with client_of(make_app(engine, tokenizer)) as client:
        await client.post(PATH, json=COMPLETION | {"timeout": 0.05})
    assert lines.steps == [RECEIVED, ACCEPTED, "request failed"]
    assert (lines.fields(-1)["outcome"], lines.fields(-1)["status"]) == ("timeout", 504)


async def test_requests_that_are_refused(engine: FakeEngine, tokenizer: Tokenizer, lines: Lines) -> None:
    async with client_of(make_app(engine, tokenizer)) as client:
        await client.post(PATH, content=b"{", headers={"content-type": "application/json"})
        await client.post(PATH, json=COMPLETION | {"max_tokens": 0})
        assert lines.steps == ["request refused"] * 2  # nothing could be known of them before
        assert [lines.fields(number)["cause"] for number in (0, 1)] == [
            "invalid_json", "invalid_value: max_tokens",
        ]  # fmt: skip
        for refusal in (NotReady("draining"), InvalidRequest("too long", param="prompt")):
            lines.records.clear()
            engine.refusal = refusal
            await client.post(PATH, json=COMPLETION)
            assert lines.steps == [RECEIVED, "request refused"]
        assert lines.fields(-1)["cause"] == "invalid_value: prompt"
        lines.records.clear()
        await client.post(PATH, json=COMPLETION | {"model": "another"})
        assert lines.steps == [RECEIVED, "request refused"]
        assert lines.fields(-1)["cause"] == "model_not_found: model"
    lines.records.clear()
    async with client_of(make_app(engine, tokenizer, keyring=ring(key("alice")))) as client:
        await client.post(PATH, json=COMPLETION)
    assert lines.steps == ["request refused"] and lines.fields(0)["status"] == 401


async def test_a_defect_is_a_failure(engine: FakeEngine, tokenizer: Tokenizer, lines: Lines) -> None:
    engine.refusal = KeyError("a defect")
    async with client_of(make_app(engine, tokenizer)) as client:
        await client.post(PATH, json=COMPLETION)
    assert lines.steps == [RECEIVED, "request failed"] and lines.fields(-1)["cause"] == "KeyError"


async def test_other_requests_are_logged_when_debugging(
    engine: FakeEngine, tokenizer: Tokenizer, lines: Lines
) -> None:
    async with client_of(make_app(engine, tokenizer)) as client:
        await client.get("/v1/models")
        assert lines.steps == []
        logging.getLogger("skipjoin.gateway").setLevel(logging.DEBUG)
        await client.get("/v1/models")
        assert lines.steps == ["request answered"] and lines.fields(0)["endpoint"] == "/v1/models"


SECRET = "xyzzy"
"""Part of every prompt below."""


@pytest.mark.parametrize("asked_for", [False, True])
async def test_no_line_and_no_span_has_text_of_a_prompt_unless_asked_for(
    engine: FakeEngine, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture, asked_for: bool
) -> None:
    caplog.set_level(logging.DEBUG)
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    config = Config(
        model=ModelConfig(path="/models/x", name=MODEL),
        gateway=GatewayConfig(max_body_bytes=2000),
        logging=LoggingConfig(prompts=asked_for),
    )
    app = create_app(engine, tokenizer, config, Registry(), provider.get_tracer("test"))
    good = COMPLETION | {"prompt": f"a {SECRET} b"}
    turns = [{"role": "user", "content": SECRET}]
    bodies: list[dict[str, Any]] = [
        good,
        good | {"stream": True},
        good | {"prompt": [SECRET, SECRET], "n": 2},
        good | {"prompt": {SECRET: 1}},
        good | {"prompt": SECRET * 500},
        good | {"max_tokens": SECRET, "user": SECRET},
        good | {"model": SECRET},
        {"model": MODEL, "messages": turns},
        {"model": MODEL, "messages": [{"role": SECRET, "content": SECRET}]},
        {"model": MODEL, "messages": [{"role": "user", "content": [SECRET]}]},
        {"model": MODEL, "messages": SECRET},
        {"model": MODEL, "messages": [{"role": "user", "content": SECRET}] * 30},
        {"model": MODEL, "messages": turns, "response_format": {"type": SECRET}},
    ]
    async with client_of(app) as client:
        for body in bodies:
            path = PATH if "prompt" in body else "/v1/chat/completions"
            await client.post(path, json=body)
        await client.post("/v1/responses", json={"model": MODEL, "input": SECRET, "instructions": SECRET})
        await client.post(PATH, content=SECRET, headers={"content-type": "application/json"})
        await client.post("/tokenize", json={"model": MODEL, "prompt": SECRET})
        engine.script = [[5], GenerationFailed("stage 0 died")]
        await client.post(PATH, json=good | {"stream": True})
        engine.refusal = KeyError(SECRET)  # even a defect that holds it
        await client.post(PATH, json=good)
    said = "".join(f"{record.getMessage()} {getattr(record, 'fields', '')}" for record in caplog.records)
    traced = "".join(span.to_json() for span in exporter.get_finished_spans())
    assert len(exporter.get_finished_spans()) > len(bodies)
    assert "request finished" in said and "request refused" in said
    assert SECRET not in traced
    assert (SECRET in said) == asked_for
    if asked_for:
        assert json.dumps(f"a {SECRET} b") in json.dumps(said) or f"a {SECRET} b" in said
