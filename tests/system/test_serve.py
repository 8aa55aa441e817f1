"""The real thing: Ray Serve, HAProxy ingress, NATS, the embedded model, the official client."""

import re
import signal
import socket
from collections.abc import Iterator

import httpx
import openai
import pytest

from loadgen.served import ServedApplication
from tests.system.otlp import Collector, ReceivedSpan

pytestmark = pytest.mark.system
MODEL = "SmolLM2-135M-Instruct"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def served() -> Iterator[ServedApplication]:
    with ServedApplication("kv.device_blocks=64", "kv.host_blocks=64") as application:
        yield application


@pytest.fixture
def client(served: ServedApplication) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)


def test_streamed_and_whole_answers_are_the_same_and_say_paris(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0)  # type: ignore[arg-type]
    stream = client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,  # type: ignore[arg-type]
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content and "Paris" in text
    assert chunks[-1].usage and whole.usage
    # The second finds what the first has computed.
    assert chunks[-1].usage.to_dict() | {"prompt_tokens_details": None} == whole.usage.to_dict() | {
        "prompt_tokens_details": None
    }
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "stop"


def test_text_reaches_the_client_while_the_answer_is_being_made(client: openai.OpenAI) -> None:
    """Nothing between the stage and the client collects tokens into larger pieces."""
    stream = client.completions.create(
        model=MODEL, prompt="Once upon a time", max_tokens=20, stream=True, extra_body={"ignore_eos": True}
    )
    assert len([chunk for chunk in stream if chunk.choices[0].text]) >= 15


def test_errors_come_through_the_ingress_in_openais_form(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="max_tokens") as caught:
        client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=100_000, stream=True)  # type: ignore[arg-type]
    assert caught.value.param in ("max_tokens", "max_completion_tokens")
    with pytest.raises(openai.NotFoundError, match="no-such-model"):
        client.chat.completions.create(model="no-such-model", messages=QUESTION)  # type: ignore[arg-type]
    assert client.models.list().data[0].id == MODEL


def test_health_ready_and_the_metrics_of_every_service(served: ServedApplication) -> None:
    assert httpx.get(f"{served.url}/health").status_code == 200
    assert httpx.get(f"{served.url}/ready").status_code == 200
    text = httpx.get(f"{served.url}/metrics").text
    for service in ("scheduler", "kvcache", "profiler", "stage0"):
        assert f'skipjoin_up{{service="{service}"}} 1.0' in text
    blocks = re.findall(r'skipjoin_kv_blocks{state="(\w+)",tier="device"} (\S+)', text)
    assert {state for state, _ in blocks} == {"free", "held", "moving", "cached"}
    assert sum(float(count) for _, count in blocks) == 64  # the profiler's own jobs may hold some


def test_the_pages_come_through_the_ingress(served: ServedApplication) -> None:
    for path, kind in (
        ("/", "text/html"), ("/docs", "text/html"), ("/pages/main.js", "javascript"),
        ("/swagger/swagger-ui.css", "text/css"), ("/openapi.json", "application/json"),
    ):  # fmt: skip
        answer = httpx.get(f"{served.url}{path}")
        assert answer.status_code == 200 and kind in answer.headers["content-type"], path


def test_a_request_has_one_id(served: ServedApplication) -> None:
    for given in ({"request_id": "mine"}, {}):
        answer = httpx.post(f"{served.url}/v1/completions", json={"model": MODEL, "prompt": "a", **given})
        (echoed,) = answer.headers.get_list("x-request-id")
        assert echoed == given.get("request_id", echoed)


def test_interrupt_ends_it_cleanly_and_leaves_no_process(served: ServedApplication) -> None:
    """Last in this file: it ends the application."""
    assert served.survivors()
    assert served.stop() == 0, "".join(served.output)
    assert served.survivors() == []


def test_sigterm_lets_open_answers_end_and_leaves_no_process() -> None:
    body = {
        "model": MODEL,
        "prompt": "Once upon a time",
        "max_tokens": 60,
        "stream": True,
        "ignore_eos": True,
    }
    with (
        ServedApplication("gateway.drain_s=60") as served,
        httpx.stream("POST", f"{served.url}/v1/completions", json=body, timeout=60) as answer,
    ):
        lines = answer.iter_lines()
        next(lines)
        served.process.send_signal(signal.SIGTERM)
        while (refused := httpx.post(f"{served.url}/v1/completions", json=body)).status_code == 200:
            pass  # it was quicker than the signal
        assert refused.status_code == 503 and refused.headers["retry-after"]
        rest = [line for line in lines if line]
        assert '"finish_reason":"length"' in rest[-2] and rest[-1] == "data: [DONE]"
        assert served.process.wait(60) == 0, "".join(served.output)
        assert served.survivors() == []


@pytest.mark.parametrize(
    ("assignment", "cause"),
    [
        ("model.path=/no/such/folder", "/no/such/folder"),
        ("nats.url=nats://127.0.0.1:1", "cannot connect to NATS at nats://127.0.0.1:1"),
        ("kv.device_blocks=100000000", "kv.device_blocks"),
        ("parallel.tensor_parallel=2", "9 attention heads and 3 KV heads evenly, set it to 1 or 3"),
    ],
)
def test_a_start_that_fails_ends_with_the_cause(assignment: str, cause: str) -> None:
    application = ServedApplication(assignment)
    status = application.wait_for_end()
    assert status == 1
    assert cause in "".join(application.output[-3:])
    assert application.survivors() == []


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        application = ServedApplication(f"gateway.port={port}")
        assert application.wait_for_end() == 1
    assert f"cannot listen on 127.0.0.1:{port}" in application.output[-1]


def test_ray_serves_span_is_in_the_trace_of_its_request() -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    serve, gateway = "replica_handle_request gateway __call__", "POST /v1/completions"

    def of_the_trace(spans: list[ReceivedSpan]) -> dict[str, ReceivedSpan]:
        return {span.name: span for span in spans if span.trace_id == trace}

    with (
        Collector() as collector,
        ServedApplication(f"tracing.otlp_endpoint={collector.endpoint}") as application,
    ):
        body = {"model": MODEL, "prompt": "Once", "max_tokens": 3, "ignore_eos": True}
        header = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
        answer = httpx.post(f"{application.url}/v1/completions", json=body, headers=header, timeout=60)
        assert answer.status_code == 200
        spans = of_the_trace(collector.wait_for(lambda spans: {serve, gateway} <= of_the_trace(spans).keys()))
    assert spans[serve].parent_id == "b7ad6b7169203331" and spans[serve].service == "skipjoin.ingress"
    assert spans[gateway].parent_id == spans[serve].span_id
