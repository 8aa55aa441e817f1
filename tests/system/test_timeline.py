"""One truth told four ways: what the client measured, the spans at a real collector, the timeline as JSON
and as a Chrome trace; with jobs that are preempted and swapped.
"""

import asyncio
import json
import time
from itertools import pairwise
from typing import Any

import pytest

from tests.application import Application
from tests.system.otlp import Collector, ReceivedSpan
from tests.system.reference import make_prompt

Json = dict[str, Any]
MILLISECOND = 1e-3
PIPELINE_STATES = {
    "queued", "prefill", "decode", "preempted", "swapping_out", "on_host", "swapping_in", "recompute",
}  # fmt: skip


async def ask(app: Application, number: int) -> float:
    """Seconds that the client of one request waited."""
    body = app.completion(make_prompt(number), 40, temperature=0, request_id=f"r{number}")
    began = time.perf_counter()
    answer = await app.http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return time.perf_counter() - began


def check(choice: Json) -> None:
    segments = choice["segments"]
    assert segments[0]["start_s"] == 0.0 and segments[0]["state"] == "gateway"
    assert all(before["end_s"] == after["start_s"] for before, after in pairwise(segments))
    total = sum(segment["end_s"] - segment["start_s"] for segment in segments)
    assert total == pytest.approx(choice["total_s"], abs=MILLISECOND)
    assert segments[-1]["state"] == "sending" and choice["finish_reason"] == "length"
    assert choice["output_tokens"] == 40
    begun = sum(s["iterations"] or 0 for s in segments)
    assert begun >= 40, "each token comes from an iteration"
    (first,) = {s["end_s"] for s in segments if s["state"] == "prefill"}
    assert choice["first_token_s"] == pytest.approx(first, abs=MILLISECOND)


def check_spans(choice: Json, spans: list[ReceivedSpan]) -> ReceivedSpan:
    """The trace of a request is its timeline. Returns the request's own span."""
    (root,) = (span for span in spans if span.service == "skipjoin.gateway" and span.name.startswith("POST"))
    assert root.seconds == pytest.approx(choice["total_s"], abs=5 * MILLISECOND)
    states = [span for span in spans if span.service == "skipjoin.scheduler"]
    states.sort(key=lambda span: span.start_ns)
    expected = [segment for segment in choice["segments"] if segment["state"] in PIPELINE_STATES]
    assert [span.name for span in states] == [segment["state"] for segment in expected]
    for span, segment in zip(states, expected, strict=True):
        assert span.parent_id == root.span_id and not span.is_error
        assert span.seconds == pytest.approx(segment["end_s"] - segment["start_s"], abs=MILLISECOND)
        assert span.attributes["level"] == segment["level"]
        assert span.attributes.get("iterations") == segment["iterations"]
        assert span.attributes.get("displaced_by") == (segment["displaced_by"] or None)
        since = (span.start_ns - states[0].start_ns) / 1e9
        assert since == pytest.approx(segment["start_s"] - expected[0]["start_s"], abs=MILLISECOND)
    prefills = {span.span_id for span in states if span.name in ("prefill", "recompute")}
    computes = [span for span in spans if span.name == "compute"]
    assert computes and {span.parent_id for span in computes} <= prefills
    assert {span.parent_id for span in spans if span.name == "detokenize"} == {root.span_id}
    return root


def check_chrome_trace(trace: Json, choices: list[Json]) -> None:
    events = trace["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    for choice in choices:
        (track,) = (tid for tid, name in names.items() if name == choice["request_id"])
        slices = [e for e in events if e["ph"] == "X" and e["tid"] == track]
        assert [e["cat"] for e in slices] == [segment["state"] for segment in choice["segments"]]
        assert all(e["ts"] + e["dur"] == after["ts"] for e, after in pairwise(slices))
        assert sum(e["dur"] for e in slices) / 1e6 == pytest.approx(choice["total_s"], abs=MILLISECOND)
        marks = [e["name"] for e in events if e["ph"] == "i" and e["tid"] == track]
        assert marks.count("first token") == 1
        assert sum(mark.startswith("demoted") for mark in marks) == len(choice["demotions"])


async def test_a_timeline_is_what_the_client_waited_for_and_what_the_collector_got(
    collector: Collector,
) -> None:
    async with Application(
        tracing={"otlp_endpoint": collector.endpoint},
        kv={"device_blocks": 12, "host_blocks": 64},
        scheduler={"max_batch_size": 2},
    ) as app:
        waited = await asyncio.gather(*(ask(app, number) for number in range(8)))
        path = "/v1/requests/{}/timeline"
        timelines = [(await app.http.get(path.format(f"r{number}"))).json() for number in range(8)]
        one = (await app.http.get(path.format("r3"), params={"format": "perfetto"})).json()
        window = (await app.http.get("/v1/timeline", params={"seconds": 3600})).json()
        trace = json.loads(
            (await app.http.get("/v1/timeline", params={"seconds": 3600, "format": "perfetto"})).text
        )

    # the clients' clock
    choices = [timeline["choices"][0] for timeline in timelines]
    for choice, seconds in zip(choices, waited, strict=True):
        check(choice)
        assert 0 <= seconds - choice["total_s"] < 0.25, "the rest is the client's own"
    states = {segment["state"] for choice in choices for segment in choice["segments"]}
    assert states >= {"queued", "prefill", "decode", "swapping_out", "on_host", "swapping_in", "preempted"}
    named = {name for c in choices for s in c["segments"] for name in s["displaced_by"] or ()}
    assert named <= {f"r{number}" for number in range(8)} and len(named) > 2
    assert any(choice["demotions"] for choice in choices)

    # the collector
    roots = [
        check_spans(choice, [s for s in collector.spans if s.trace_id == choice["trace_id"]])
        for choice in choices
    ]
    iterations = [span for span in collector.spans if span.name == "iteration"]
    for choice, root in zip(choices, roots, strict=True):
        begun = sum(segment["iterations"] or 0 for segment in choice["segments"])
        assert sum(root.span_id in span.links for span in iterations) == begun
        assert root.attributes["gen_ai.operation.name"] == "text_completion"
        assert root.attributes["gen_ai.usage.output_tokens"] == 40
        assert root.attributes["gen_ai.request.model"] == app.config.model.served_name
    assert {link for span in iterations for link in span.links} == {root.span_id for root in roots}
    assert len({span.trace_id for span in iterations}) == len(iterations)
    assert all(len(span.links) == span.attributes["batch"] <= 2 for span in iterations)

    # Perfetto
    check_chrome_trace(one, choices[3:4])
    check_chrome_trace(trace, choices)

    # the window
    assert {each["request_id"]: each for each in window["requests"]} == {
        choice["request_id"]: choice for choice in choices
    }
    samples = window["samples"]
    assert {sample["device_total"] for sample in samples} == {12}
    assert max(sample["device_used"] for sample in samples) > 8
    assert sum(sample["swap_out_blocks"] for sample in samples) > 0
    assert sum(sample["swap_in_blocks"] for sample in samples) > 0
    assert max(sample["batch"] for sample in samples) == 2 and max(s["waiting"] for s in samples) >= 5
    counters = {event["name"] for event in trace["traceEvents"] if event["ph"] == "C"}
    assert counters == {"device blocks", "host blocks", "batch", "waiting", "swapped blocks"}


async def test_unfinished_and_aborted_requests_over_grpc(collector: Collector) -> None:
    """And a second gateway, which knows them when they have ended."""
    from services.gateway.service import GatewayService
    from tests.gateway.fakes import client_of

    with collector.over_grpc() as endpoint:
        async with Application(tracing={"otlp_endpoint": endpoint, "protocol": "grpc"}) as app:
            other = GatewayService(app.config)
            await other.start()
            told = await other.bus.subscribe(other.bus.subjects.requests_ended)
            body = app.completion("Once upon a time", 1000, request_id="long")
            chunks = app.chunks(body)
            answer_id = (await anext(chunks))["id"]
            so_far = (await app.http.get("/v1/requests/long/timeline")).json()
            assert so_far["segments"][-1]["state"] in ("prefill", "decode", "preempted")
            assert so_far["choices"][0]["finish_reason"] is None
            (listed,) = (await app.http.get("/v1/timeline")).json()["requests"]
            assert listed["request_id"] == "long" and listed["finish_reason"] is None
            await chunks.aclose()
            await told.next()
            await app.settled()
            async with client_of(other.api) as beside:
                names = ("long", answer_id)
                here = [(await app.http.get(f"/v1/requests/{name}/timeline")).json() for name in names]
                there = [(await beside.get(f"/v1/requests/{name}/timeline")).json() for name in names]
            await other.stop()
    assert here[0] == here[1] and here[0]["choices"][0]["finish_reason"] == "abort"
    for one, two in zip(here, there, strict=True):
        assert one["segments"] == two["segments"]
    spans = [span for span in collector.spans if span.trace_id == here[0]["trace_id"]]
    failed = {span.name for span in spans if span.is_error}
    assert "POST /v1/completions" in failed and failed & {"prefill", "decode", "preempted"}
