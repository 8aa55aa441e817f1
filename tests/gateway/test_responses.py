"""`/v1/responses`: the official client's events and objects, what is refused by name, and truncation."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.schema import Message
from services.gateway.tokenizer import Tokenizer
from services.gateway.truncation import latest_that_fit
from shared.errors import GenerationFailed
from shared.messages import FinishReason, Limits
from tests.gateway.fakes import MODEL, FakeEngine, client_of, make_app
from tests.gateway.server import served

PATH = "/v1/responses"
ASK: dict[str, Any] = {"model": MODEL, "input": "hi"}
EMPTY_EVENTS = ["response.created", "response.in_progress"]
BEGIN = ["response.output_item.added", "response.content_part.added"]
END = ["response.output_text.done", "response.content_part.done", "response.output_item.done"]


@pytest.fixture
async def client(engine: FakeEngine, tokenizer: Tokenizer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        served(engine, tokenizer) as url,
        openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client,
    ):
        yield client


async def post(engine: FakeEngine, tokenizer: Tokenizer, body: Any) -> httpx.Response:
    async with client_of(make_app(engine, tokenizer)) as client:
        return await client.post(PATH, json=body)


def events_of(text: str) -> list[dict[str, Any]]:
    events = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        kind, data = block.split("\n")
        body = json.loads(data.removeprefix("data: "))
        assert kind == f"event: {body['type']}"
        events.append(body)
    return events


async def test_a_whole_response(engine: FakeEngine, client: openai.AsyncOpenAI) -> None:
    engine.say("héllo 🎉 中文", stop_token=1)
    answer = await client.responses.create(
        model=MODEL, input="hi", instructions="Be kind.", metadata={"k": "v"}, user="me", temperature=0.5
    )
    assert answer.output_text == "héllo 🎉 中文" and answer.status == "completed"
    assert answer.id.startswith("resp_") and answer.output[0].id.startswith("msg_")
    assert (answer.instructions, answer.metadata, answer.user, answer.temperature, answer.store) == (
        "Be kind.",
        {"k": "v"},
        "me",
        0.5,
        False,
    )
    assert answer.usage and answer.usage.input_tokens == len(engine.submitted[0].prompt)
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert engine.submitted[0].tenant == "me" and engine.submitted[0].sampling.temperature == 0.5


async def test_what_is_asked_is_what_chat_would_ask(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    last = [{"type": "input_text", "text": "c"}, {"type": "input_text", "text": "d"}]
    sampling = {"temperature": 0.3, "top_p": 0.4, "top_k": 3, "seed": 5, "stop": ["x"], "priority": 2}
    body = (
        ASK
        | sampling
        | {
            "instructions": "s",
            "input": [*turns, {"type": "message", "role": "user", "content": last}],
            "max_output_tokens": 7,
        }
    )
    chat = {"model": MODEL, "max_tokens": 7} | sampling
    chat["messages"] = [{"role": "system", "content": "s"}, *turns, {"role": "user", "content": "c\nd"}]
    async with client_of(make_app(engine, tokenizer)) as client:
        assert (await client.post(PATH, json=body)).status_code == 200
        assert (await client.post("/v1/chat/completions", json=chat)).status_code == 200
    mine, other = engine.submitted
    assert (mine.prompt, mine.max_tokens, mine.sampling, mine.priority) == (
        other.prompt,
        other.max_tokens,
        other.sampling,
        other.priority,
    )


async def test_the_events_of_a_stream(engine: FakeEngine, client: openai.AsyncOpenAI) -> None:
    engine.say("héllo 🎉 中文", stop_token=1)
    stream = await client.responses.create(model=MODEL, input="hi", stream=True)
    events = [event async for event in stream]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == "héllo 🎉 中文" and "" not in deltas and len(deltas) > 3
    middle = ["response.output_text.delta"] * len(deltas)
    assert [event.type for event in events] == [*EMPTY_EVENTS, *BEGIN, *middle, *END, "response.completed"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type == "response.completed" and last.response.output_text == "héllo 🎉 中文"
    assert last.response.usage and last.response.usage.output_tokens == engine_tokens(engine)
    assert last.response.completed_at


def engine_tokens(engine: FakeEngine) -> int:
    return sum(len(step) for step in engine.script if isinstance(step, list))


async def test_the_clients_own_accumulator_agrees(engine: FakeEngine, client: openai.AsyncOpenAI) -> None:
    """`responses.stream` checks that the events build up the response that the last one holds."""
    engine.say("hello there", stop_token=1)
    async with client.responses.stream(model=MODEL, input="hi") as stream:
        snapshots = [event.snapshot async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert snapshots[-1] == final.output_text == "hello there"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_is_cut_is_incomplete(
    engine: FakeEngine, tokenizer: Tokenizer, stream: bool
) -> None:
    engine.finish = FinishReason.LENGTH
    answer = await post(engine, tokenizer, ASK | {"max_output_tokens": 16, "stream": stream})
    if stream:
        *_, item, last = events_of(answer.text)
        assert (item["item"]["status"], last["type"]) == ("incomplete", "response.incomplete")
        response = last["response"]
    else:
        response = answer.json()
    assert response["status"] == response["output"][0]["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_a_failure_in_mid_stream_is_an_event_with_the_text_so_far(
    engine: FakeEngine, client: openai.AsyncOpenAI
) -> None:
    engine.say("ab")
    engine.script.append(GenerationFailed("stage 0 died"))
    events = [event async for event in await client.responses.create(model=MODEL, input="hi", stream=True)]
    last = events[-1]
    assert last.type == "response.failed" and last.response.status == "failed"
    assert last.response.error and "stage 0 died" in last.response.error.message
    assert last.response.output_text == "ab"
    assert not any(event.type in END for event in events)


async def test_a_stream_without_text_has_all_events(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    engine.script, engine.finish = [[tokenizer.encode("")[0], 1]], FinishReason.STOP
    events = events_of((await post(engine, tokenizer, ASK | {"stream": True})).text)
    assert [event["type"] for event in events] == [*EMPTY_EVENTS, *BEGIN, *END, "response.completed"]


async def test_accepted_is_said_before_there_is_text(engine: FakeEngine, client: openai.AsyncOpenAI) -> None:
    gate = asyncio.Event()
    engine.script = [gate, [5]]
    stream = await client.responses.create(model=MODEL, input="hi", stream=True)
    assert [(await anext(stream)).type for _ in EMPTY_EVENTS] == EMPTY_EVENTS
    gate.set()
    assert [event.type async for event in stream][-1] == "response.incomplete"


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs(engine: FakeEngine, tokenizer: Tokenizer, stream: bool) -> None:
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "stream": stream}
    answer = await post(engine, tokenizer, ASK | asked)
    if stream:
        events = events_of(answer.text)
        parts = [event["logprobs"] for event in events if event["type"] == "response.output_text.delta"]
        done = next(event for event in events if event["type"] == "response.output_text.done")
        scored = [each for part in parts for each in part]
        assert scored == done["logprobs"]
    else:
        scored = answer.json()["output"][0]["content"][0]["logprobs"]
    assert "".join(each["token"] for each in scored) == "hello there"
    assert {len(each["top_logprobs"]) for each in scored} == {2}


async def test_an_answer_can_be_sent_back_as_it_came(client: openai.AsyncOpenAI) -> None:
    first = await client.responses.create(model=MODEL, input="hi", include=["message.output_text.logprobs"])
    turns: Any = [{"role": "user", "content": "hi"}, *first.output, {"role": "user", "content": "and?"}]
    assert (await client.responses.create(model=MODEL, input=turns)).output_text == "hello there"
    plain: Any = [{"role": "user", "content": "hi"}, *(item.to_dict() for item in first.output)]
    assert (await client.responses.create(model=MODEL, input=plain)).output_text == "hello there"


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "nothing is stored"),
        ({"store": True}, "store", "nothing is stored"),
        ({"conversation": "conv_1"}, "conversation", "nothing is stored"),
        ({"background": True}, "background", "not supported"),
        ({"reasoning": {"effort": "low"}}, "reasoning", "not supported"),
        ({"input": []}, "input", "at least 1"),
        ({"input": None}, "input", "string"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input[0].type", "message"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
            "text",
        ),
        ({"include": ["file_search_call.results"]}, "include[0]", "logprobs"),
        ({"max_output_tokens": 0}, "max_output_tokens", "greater than or equal to 1"),
        ({"max_output_tokens": 100_000}, "max_output_tokens", "ask for at most"),
        ({"min_tokens": 9, "max_output_tokens": 8}, "min_tokens", "(max_output_tokens)"),
        ({"metadata": {"k": 1}}, "metadata.k", "string"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "16"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k", "512"),
        (
            {"stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
            "not support",
        ),
        ({"stream_options": {"include_obfuscation": 0}}, "stream_options.include_obfuscation", "not support"),
        ({"truncation": "some"}, "truncation", "auto"),
        ({"max_tokens": 5}, "max_tokens", "unknown field"),
        ({"n": 2}, "n", "unknown field"),
        ({"instructions": 5}, "instructions", "string"),
        ({"input": "x" * 1000}, "input", "exceed the model's context"),
        ({"input": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]}, "input", "first"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_refusals_name_the_field(
    engine: FakeEngine, tokenizer: Tokenizer, fields: dict[str, Any], param: str, words: str, stream: bool
) -> None:
    answer = await post(engine, tokenizer, ASK | fields | {"stream": stream})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert words in error["message"]
    assert engine.submitted == []


async def test_every_field_may_be_null(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    app = make_app(engine, tokenizer)
    fields = app.openapi()["components"]["schemas"]["ResponseRequest"]["properties"]
    async with client_of(app) as client:
        answer = await client.post(PATH, json=dict.fromkeys(fields) | ASK)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("kept", ["sabcde", "scde", "se", ""])
async def test_truncation_leaves_out_the_oldest_turns(
    engine: FakeEngine, tokenizer: Tokenizer, kept: str
) -> None:
    """In a context with room for `kept` and one token of the answer, and for no more."""
    roles = {"s": "system", "b": "assistant", "d": "assistant"}
    turns = [{"role": roles.get(name, "user"), "content": name * 20} for name in "sabcde"]
    fitting = tokenizer.encode_chat([turn for turn in turns if turn["content"][0] in kept])
    engine.limits = Limits(len(fitting) + 1, 1000)
    answer = await post(engine, tokenizer, ASK | {"input": turns, "truncation": "auto"})
    if not kept:  # not even the last turn fits: refused with its size
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "input"
        return
    assert answer.status_code == 200, answer.text
    assert engine.submitted[0].prompt == fitting
    refused = await post(engine, tokenizer, ASK | {"input": turns, "truncation": "disabled"})
    assert refused.status_code == (200 if kept == "sabcde" else 400)


@given(
    st.lists(st.sampled_from(["user", "assistant", "system"]), min_size=1, max_size=12),
    st.integers(0, 12),
)
def test_truncation_keeps_the_most_that_fits(roles: list[str], room: int) -> None:
    messages = [Message.model_validate({"role": role, "content": str(i)}) for i, role in enumerate(roles)]
    kept = latest_that_fit(messages, lambda part: len(part) <= room)
    allowed = [
        [m for i, m in enumerate(messages) if i >= start or m.role == "system"]
        for start in range(len(roles))
        if start == 0 or roles[start] == "user"
    ]
    fitting = [part for part in allowed if len(part) <= room]
    assert len(kept) == (max(map(len, fitting)) if fitting else min(map(len, allowed)))
    assert kept in allowed


async def test_it_is_found_by_its_id(engine: FakeEngine, client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.create(model=MODEL, input="hi")
    report = (await client._client.get(f"{client.base_url}requests/{answer.id}")).json()
    assert (report["answer_id"], report["endpoint"], report["ended"]) == (answer.id, PATH, True)


async def test_closing_a_stream_aborts_the_job(engine: FakeEngine, client: openai.AsyncOpenAI) -> None:
    engine.script = [[5], asyncio.Event(), [6]]
    stream = await client.responses.create(model=MODEL, input="hi", stream=True)
    await engine.waiting.wait()
    await stream.close()
    await asyncio.wait_for(engine.abort_seen.wait(), 10)
    assert engine.aborted == [engine.submitted[0].job_id]
