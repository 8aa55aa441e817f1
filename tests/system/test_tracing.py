"""One request, one trace, over HTTP and NATS, with the right parents."""

from tests.application import Application
from tests.system.otlp import Collector, ReceivedSpan

TRACE_ID, CLIENT_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


async def test_a_traceparent_gives_one_trace_over_all_services(collector: Collector) -> None:
    async with Application(
        tracing={"otlp_endpoint": collector.endpoint}, parallel={"pipeline_stages": 2}
    ) as app:
        answer = await app.http.post(
            "/v1/chat/completions",
            headers={"traceparent": f"00-{TRACE_ID}-{CLIENT_SPAN}-01"},
            json={
                "model": app.config.model.served_name,
                "messages": [{"role": "user", "content": "Hi"}],
                "max_tokens": 5,
            },
        )
        assert answer.status_code == 200
    spans = [span for span in collector.spans if span.trace_id == TRACE_ID]
    tree = {(span.service.removeprefix("skipjoin."), span.name): span for span in spans}
    by_id = {span.span_id: span for span in spans}

    def parent(service: str, name: str) -> tuple[str, str] | None:
        above: ReceivedSpan | None = by_id.get(tree[service, name].parent_id)
        return (above.service.removeprefix("skipjoin."), above.name) if above else None

    root = ("gateway", "POST /v1/chat/completions")
    assert tree[root].parent_id == CLIENT_SPAN
    for child in ("tokenize", "detokenize"):
        assert parent("gateway", child) == root
    for child in ("queued", "prefill", "decode"):
        assert parent("scheduler", child) == root
    assert parent("kvcache", "allocate") == root
    for stage in ("stage0", "stage1"):
        assert parent(stage, "compute") == ("scheduler", "prefill")
    for span in spans:
        assert tree[root].start_ns <= span.start_ns <= span.end_ns <= tree[root].end_ns + 50_000_000, span
        assert not span.is_error


async def test_swaps_are_in_the_trace_and_refused_requests_are_errors(collector: Collector) -> None:
    import asyncio

    from tests.system.reference import make_prompt
    from tests.system.test_exact_tokens import complete

    async with Application(
        tracing={"otlp_endpoint": collector.endpoint}, kv={"device_blocks": 12, "host_blocks": 64}
    ) as app:
        await asyncio.gather(*(complete(app, make_prompt(index), max_tokens=24) for index in range(8)))
        refused = await app.http.post("/v1/completions", json={"model": "nothing", "prompt": "x"})
        assert refused.status_code == 404
    roots = {span.trace_id: span for span in collector.spans if span.name == "POST /v1/completions"}
    swaps = [span for span in collector.spans if span.name in ("swap_out", "swap_in")]
    assert {span.name for span in swaps} == {"swap_out", "swap_in"}
    assert all(span.service == "skipjoin.kvcache" and span.trace_id in roots for span in swaps)
    assert sum(span.is_error for span in roots.values()) == 1
