"""`/v1/responses` with `text.format` and tools, as the openai package uses them; and what it refuses."""

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from services.gateway.tokenizer import Tokenizer
from shared.messages import FinishReason, Limits
from tests.gateway.fakes import MODEL, FakeEngine, client_of, make_app
from tests.gateway.server import served
from tests.gateway.test_responses import EMPTY_EVENTS, END, events_of, post

ASK: dict[str, Any] = {"model": MODEL, "input": "hi"}
GET: Any = {
    "type": "function",
    "name": "get",
    "description": "Gets.",
    "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
    "strict": None,
}
CALLED = '<tool_call>\n{"name": "get", "arguments": {"a": "é🎉"}}\n</tool_call>'
TWICE = f"{CALLED}\n{CALLED}"
MADE = {"type": "function_call", "call_id": "c1", "name": "get", "arguments": '{"a": "x"}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "1"}
CALL_EVENTS = [
    "response.output_item.added",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.output_item.done",
]


class Answer(BaseModel):
    a: str


@pytest.fixture(autouse=True)
def room(engine: FakeEngine) -> None:
    engine.limits = Limits(8192, 8192)  # the tiny tokenizer writes byte by byte


@pytest.fixture
async def client(engine: FakeEngine, tokenizer: Tokenizer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        served(engine, tokenizer) as url,
        openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client,
    ):
        yield client


async def test_the_grammar_and_the_prompt_are_those_of_chat(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    named = {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
    nested = {
        "type": "json_schema",
        "json_schema": {key: named[key] for key in ("name", "schema", "strict")},
    }
    function = {key: GET[key] for key in ("name", "description", "parameters")}
    called = {"name": "get", "arguments": '{"a": "x"}'}
    call = {"id": "c1", "type": "function", "function": called}
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
    ]
    items = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        MADE,
        {**RESULT, "output": [{"type": "input_text", "text": "1"}]},
    ]
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        ({"text": {"format": named}}, {"response_format": nested}),
        ({"tools": [GET]}, {"tools": [{"type": "function", "function": function}]}),
        (
            {"tools": [GET], "tool_choice": {"type": "function", "name": "get"}, "text": {"format": named}},
            {
                "tools": [{"type": "function", "function": function}],
                "tool_choice": {"type": "function", "function": {"name": "get"}},
                "response_format": nested,
            },
        ),
        (
            {"tools": [GET], "tool_choice": "required", "parallel_tool_calls": False, "input": items},
            {
                "tools": [{"type": "function", "function": function}],
                "tool_choice": "required",
                "parallel_tool_calls": False,
                "messages": turns,
            },
        ),
        ({"tools": [GET], "tool_choice": "none"}, {}),
    ]
    async with client_of(make_app(engine, tokenizer)) as http:
        for mine, others in pairs:
            engine.submitted.clear()
            answer = await http.post("/v1/responses", json=ASK | mine)
            assert answer.status_code == 200, answer.text
            chat = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]} | others
            assert (await http.post("/v1/chat/completions", json=chat)).status_code == 200
            response, other = engine.submitted
            assert response.prompt == other.prompt
            assert (response.grammar is None) == (other.grammar is None)
            if response.grammar and other.grammar:
                assert response.grammar.source == other.grammar.source


async def test_calls(engine: FakeEngine, client: openai.AsyncOpenAI) -> None:
    engine.say(f"Let me see.\n{TWICE}", stop_token=1)
    answer = await client.responses.create(model=MODEL, input="hi", tools=[GET])
    message, *calls = answer.output
    assert answer.status == "completed" and answer.output_text == "Let me see."
    assert message.type == "message" and len(calls) == 2
    for call in calls:
        assert call.type == "function_call" and call.name == "get" and call.status == "completed"
        assert json.loads(call.arguments) == {"a": "é🎉"}
    assert len({call.id for call in calls}) == len({call.call_id for call in calls}) == 2  # type: ignore[union-attr]
    (tool,) = answer.tools
    assert tool.type == "function" and tool.name == "get" and answer.tool_choice == "auto"


@pytest.mark.parametrize("text", ["", "Let me see.\n"])
async def test_the_events_of_calls(
    engine: FakeEngine, tokenizer: Tokenizer, client: openai.AsyncOpenAI, text: str
) -> None:
    engine.say(text + TWICE, stop_token=1)
    events = events_of((await post(engine, tokenizer, ASK | {"tools": [GET], "stream": True})).text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"] for event in events]
    kinds = [kind for i, kind in enumerate(kinds) if not i or kinds[i - 1] != kind]
    message = [
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        *END,
    ]
    expected = [*EMPTY_EVENTS, *(message if text else []), *CALL_EVENTS, *CALL_EVENTS, "response.completed"]
    assert kinds == expected
    last = events[-1]["response"]
    joined: dict[str, str] = {}
    for event in events:
        if event["type"] == "response.function_call_arguments.delta":
            assert event["delta"]
            joined[event["item_id"]] = joined.get(event["item_id"], "") + event["delta"]
        if event["type"] == "response.output_item.done":
            assert event["item"] == last["output"][event["output_index"]]
    calls = [item for item in last["output"] if item["type"] == "function_call"]
    assert joined == {call["id"]: call["arguments"] for call in calls} and len(calls) == 2

    async with client.responses.stream(model=MODEL, input="hi", tools=[GET]) as stream:
        deltas = [event async for event in stream if event.type == "response.function_call_arguments.delta"]
        final = await stream.get_final_response()
    assert deltas[-1].snapshot == '{"a": "é🎉"}'
    assert [item.type for item in final.output] == [item["type"] for item in last["output"]]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_is_cut_is_incomplete(
    engine: FakeEngine, tokenizer: Tokenizer, stream: bool
) -> None:
    engine.say(CALLED[:-20], at_once=3)
    engine.finish = FinishReason.LENGTH
    answer = await post(engine, tokenizer, ASK | {"tools": [GET], "stream": stream})
    response = events_of(answer.text)[-1]["response"] if stream else answer.json()
    (call,) = response["output"]
    assert response["status"] == call["status"] == "incomplete" and call["arguments"]


async def test_calls_are_sent_back_as_they_came(engine: FakeEngine, client: openai.AsyncOpenAI) -> None:
    engine.say(f"I look.\n{CALLED}", stop_token=1)
    tool = openai.pydantic_function_tool(Answer, name="get")
    first = await client.responses.parse(model=MODEL, input="hi", tools=[tool])
    call = first.output[-1]
    assert call.type == "function_call" and call.parsed_arguments == Answer(a="é🎉")
    engine.say("done", stop_token=1)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "1"}
    turns: Any = [{"role": "user", "content": "hi"}, *first.output, result]
    assert (await client.responses.create(model=MODEL, input=turns, tools=[GET])).output_text == "done"
    plain: Any = [{"role": "user", "content": "hi"}, *(each.model_dump() for each in first.output), result]
    assert (await client.responses.create(model=MODEL, input=plain, tools=[GET])).output_text == "done"
    assert engine.submitted[-1].prompt == engine.submitted[-2].prompt


async def test_parsed_text(engine: FakeEngine, client: openai.AsyncOpenAI) -> None:
    engine.say('{"a": "b"}', stop_token=1)
    answer = await client.responses.parse(model=MODEL, input="hi", text_format=Answer)
    assert answer.output_parsed == Answer(a="b")
    assert answer.text and answer.text.format and answer.text.format.type == "json_schema"


def schema(wanted: Any, **fields: Any) -> dict[str, Any]:
    return {"text": {"format": {"type": "json_schema", "name": "n", "schema": wanted} | fields}}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "json_schema"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema", "required"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name", "required"),
        ({"text": {"format": {"type": "text", "schema": {}}}}, "text.format.schema", "only allowed"),
        (schema({"type": "strin"}), "text.format.schema", "Invalid type: strin"),
        (schema({"uniqueItems": True}, strict=True), "text.format.schema", "uniqueItems"),
        (schema({}, description="d") | {"ignore_eos": True}, "ignore_eos", "text.format or tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "'function'"),
        ({"tools": [GET, GET]}, "tools", "two are called get"),
        ({"tools": [GET | {"parameters": {"type": "array"}}]}, "tools[0].parameters", "an object"),
        (
            {"tools": [GET | {"parameters": {"not": {}}, "strict": True}]},
            "tools[0].parameters",
            "not",
        ),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].name", "required"),
        ({"tool_choice": "required"}, "tool_choice", "only allowed with tools"),
        ({"tools": [GET], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice", "none of"),
        ({"input": [RESULT]}, "input[0].call_id", "names no call"),
        ({"input": [{"role": "user", "content": "hi"}, RESULT, MADE]}, "input[1].call_id", "names no call"),
        ({"input": [MADE | {"arguments": "[1]"}]}, "input[0].arguments", "a JSON object"),
        ({"input": [MADE, RESULT | {"output": []}]}, "input[1].output", "at least 1"),
        ({"input": [MADE | {"caller": {"type": "program"}}]}, "input[0].caller", "not supported"),
        ({"return_token_ids": True}, "return_token_ids", "not supported"),
    ],
)
async def test_refusals_name_the_field(
    engine: FakeEngine, tokenizer: Tokenizer, fields: dict[str, Any], param: str, words: str
) -> None:
    answer = await post(engine, tokenizer, ASK | fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error
    assert words in error["message"]
    assert engine.submitted == []


async def test_truncation_keeps_the_tools(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    """A result whose call was left out is no reason to fail."""
    items = [
        {"role": "user", "content": "a" * 2000},
        MADE,
        {"role": "user", "content": "wait"},
        RESULT,
        {"role": "user", "content": "and?"},
    ]
    engine.limits = Limits(2000, 2000)
    answer = await post(engine, tokenizer, ASK | {"input": items, "tools": [GET], "truncation": "auto"})
    assert answer.status_code == 200, answer.text
    prompt = tokenizer.text_of(engine.submitted[0].prompt)
    assert "aaa" not in prompt and "and?" in prompt and '"name": "get"' in prompt


async def test_tokenize_gives_the_tokens_of_the_chat(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    function = {"name": "get", "parameters": GET["parameters"]}
    made = {"id": "c1", "type": "function", "function": {"name": "get", "arguments": '{"a": "x"}'}}
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
    ]
    body = {"messages": turns, "tools": [{"type": "function", "function": function}]}
    async with client_of(make_app(engine, tokenizer)) as http:
        for asked in (body, {"messages": turns}):
            tokens = (await http.post("/tokenize", json=asked)).json()["tokens"]
            answer = await http.post("/v1/chat/completions", json={"model": MODEL} | asked)
            assert answer.status_code == 200, answer.text
            assert engine.submitted[-1].prompt == tokens
        for wrong, param in (
            ({"prompt": "a", "tools": body["tools"]}, "tools"),
            ({"messages": turns[::2]}, "messages[1].tool_call_id"),
        ):
            refused = await http.post("/tokenize", json=wrong)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
