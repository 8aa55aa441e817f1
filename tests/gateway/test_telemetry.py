"""Spans and metrics of requests, also of those that were refused, failed or aborted."""

import asyncio

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from services.gateway.tokenizer import Tokenizer
from shared.errors import GenerationFailed, NotReady
from shared.metrics import Registry
from tests.gateway.fakes import MODEL, FakeEngine, client_of, events_of, make_app
from tests.gateway.test_disconnect import Client

PATH = "/v1/completions"
BODY = {"model": MODEL, "prompt": "hi"}
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"


class Traced:
    def __init__(self, engine: FakeEngine, tokenizer: Tokenizer) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.registry = Registry()
        tracer = provider.get_tracer("skipjoin.gateway")
        self.app = make_app(engine, tokenizer, registry=self.registry, tracer=tracer)

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self._exporter.get_finished_spans()}

    def count(self, outcome: str, status: int, endpoint: str = PATH) -> float | None:
        labels = {"endpoint": endpoint, "outcome": outcome, "status": str(status)}
        return self.registry.collector.get_sample_value("skipjoin_requests_total", labels)


@pytest.fixture
def traced(engine: FakeEngine, tokenizer: Tokenizer) -> Traced:
    return Traced(engine, tokenizer)


@pytest.mark.parametrize("stream", [True, False])
async def test_one_trace_joins_client_gateway_and_engine(
    engine: FakeEngine, traced: Traced, stream: bool
) -> None:
    async with client_of(traced.app) as client:
        await client.post(PATH, json=BODY | {"stream": stream}, headers={"traceparent": TRACEPARENT})
    server = traced.spans[f"POST {PATH}"]
    assert server.kind is SpanKind.SERVER and server.context and server.parent
    assert f"{server.context.trace_id:032x}" == TRACE_ID
    assert f"{server.parent.span_id:016x}" == TRACEPARENT.split("-")[2]
    assert engine.traces == [f"00-{TRACE_ID}-{server.context.span_id:016x}-01"]
    for name in ("tokenize", "detokenize"):
        parent = traced.spans[name].parent
        assert parent and parent.span_id == server.context.span_id
    assert server.attributes and server.attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert server.attributes["gen_ai.usage.output_tokens"] == sum(map(len, engine.script))  # type: ignore[arg-type]
    assert server.status.status_code is not StatusCode.ERROR


async def test_a_span_around_the_application_is_the_parent_whatever_the_client_says(traced: Traced) -> None:
    """As Ray Serve's is, which is itself below the client's."""
    with TracerProvider().get_tracer("ingress").start_as_current_span("ingress") as around:
        async with client_of(traced.app) as client:
            await client.post(PATH, json=BODY, headers={"traceparent": TRACEPARENT})
    parent = traced.spans[f"POST {PATH}"].parent
    assert parent and parent.span_id == around.get_span_context().span_id


@pytest.mark.parametrize("header", ["", "nonsense", "00-0-0-00"])
async def test_a_bad_traceparent_starts_a_new_trace(traced: Traced, header: str) -> None:
    async with client_of(traced.app) as client:
        assert (await client.post(PATH, json=BODY, headers={"traceparent": header})).status_code == 200
    assert traced.spans[f"POST {PATH}"].parent is None


async def test_refused_requests_have_spans(traced: Traced) -> None:
    async with client_of(traced.app) as client:
        await client.post(PATH, json=BODY | {"max_tokens": 0})
        await client.post("/v1/unknown", json={})
    refused, unknown = traced.spans[f"POST {PATH}"], traced.spans["POST other"]
    assert refused.status.status_code is StatusCode.ERROR and "max_tokens" in str(refused.status.description)
    assert unknown.status.status_code is StatusCode.ERROR
    assert (traced.count("refused", 400), traced.count("refused", 404, "other")) == (1, 1)


@pytest.mark.parametrize("stream", [True, False])
async def test_failed_and_unready_requests_have_spans(
    engine: FakeEngine, traced: Traced, stream: bool
) -> None:
    engine.script = [[5], GenerationFailed("stage 0 died")]
    async with client_of(traced.app) as client:
        await client.post(PATH, json=BODY | {"stream": stream})
        assert "stage 0 died" in str(traced.spans[f"POST {PATH}"].status.description)
        assert traced.count("error", 200 if stream else 500) == 1
        engine.refusal = NotReady("draining")
        await client.post(PATH, json=BODY | {"stream": stream})
    assert traced.count("refused", 503) == 1


async def test_a_defect_is_counted_as_a_500(engine: FakeEngine, traced: Traced) -> None:
    engine.refusal = KeyError("a defect")
    async with client_of(traced.app) as client:
        assert (await client.post(PATH, json=BODY)).status_code == 500
    assert traced.count("error", 500) == 1


async def test_aborted_requests_have_spans(engine: FakeEngine, traced: Traced) -> None:
    engine.script = [[5], asyncio.Event(), [6]]
    turns = [{"role": "user", "content": "hi"}]
    client = Client(traced.app, {"model": MODEL, "messages": turns, "stream": True})
    await engine.waiting.wait()
    client.leave()
    await client.task
    assert traced.spans["POST /v1/chat/completions"].status.status_code is StatusCode.ERROR


async def test_latencies_are_counted_per_token(engine: FakeEngine, traced: Traced) -> None:
    engine.say("abcd")
    async with client_of(traced.app) as client:
        events_of((await client.post(PATH, json=BODY | {"stream": True})).text)
        page = await client.get("/metrics")
    read = traced.registry.collector.get_sample_value
    assert read("skipjoin_time_to_first_token_seconds_count") == 1
    assert read("skipjoin_inter_token_seconds_count") == 3
    assert read("skipjoin_request_seconds_count", {"endpoint": PATH}) == 1
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
