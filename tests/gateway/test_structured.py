"""`response_format` and tools over HTTP: what is refused, what is submitted, how calls come back."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from llguidance import LLTokenizer
from tokenizers import Tokenizer as Backend

from services.gateway.tokenizer import Tokenizer
from shared.errors import InvalidRequest
from shared.grammar import compile_grammar, vocabulary
from shared.messages import Limits
from tests.gateway.fakes import MODEL, FakeEngine, client_of, events_of, make_app, write_model_folder

PATH = "/v1/chat/completions"
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
GET = {
    "type": "function",
    "function": {"name": "get", "parameters": {"properties": {"a": {"type": "string"}}}},
}
CALLED = '<tool_call>\n{"name": "get", "arguments": {"a": "x"}}\n</tool_call>'
MADE = {"id": "c1", "type": "function", "function": {"name": "get", "arguments": '{"a": "x"}'}}


@pytest.fixture
def app(engine: FakeEngine, tokenizer: Tokenizer) -> FastAPI:
    engine.limits = Limits(8192, 8192)  # the tiny tokenizer writes byte by byte
    return make_app(engine, tokenizer, max_body_bytes=2_000_000)


async def ask(app: FastAPI, **fields: Any) -> tuple[int, Any]:
    async with client_of(app) as client:
        answer = await client.post(PATH, json=CHAT | fields)
        return answer.status_code, answer.json()


def schema(wanted: Any, **fields: Any) -> dict[str, Any]:
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": wanted} | fields}
    }


def tool(**fields: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "get"} | fields}]}


def turns(*messages: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}, *messages]}


NAMED = {"type": "function", "function": {"name": "put"}}
RESULT = {"role": "tool", "content": "1", "tool_call_id": "c1"}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": "json"}, "response_format", "must be an object"),
        ({"response_format": {}}, "response_format.type", "required"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "'json_schema', got 'xml'"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "required with type"),
        (
            {"response_format": {"type": "text", "json_schema": {"name": "n", "schema": {}}}},
            "response_format.json_schema",
            "only allowed with type: json_schema",
        ),
        (schema({}, name="a b"), "response_format.json_schema.name", "match pattern"),
        (schema(True), "response_format.json_schema.schema", "dictionary"),
        (schema({}, strict="yes"), "response_format.json_schema.strict", "boolean"),
        (schema({"type": "strin"}), "response_format.json_schema.schema", "Invalid type: strin"),
        (schema({"enum": []}), "response_format.json_schema.schema", "Unsatisfiable"),
        (schema({"$ref": "#/$defs/gone"}), "response_format.json_schema.schema", "gone"),
        (schema({"$ref": "file:///etc/passwd"}), "response_format.json_schema.schema", "does not fetch"),
        (schema({"$ref": "#"}), "response_format.json_schema.schema", "cannot be enforced"),
        (schema({"type": "string", "pattern": "["}), "response_format.json_schema.schema", "unclosed"),
        (
            schema({"type": "string", "pattern": "a" * 2049}),
            "response_format.json_schema.schema",
            "at most 2048",
        ),
        (
            schema({"items": {"patternProperties": {"a" * 2049: {}}}}),
            "response_format.json_schema.schema",
            "2049 characters",
        ),
        (schema({"uniqueItems": True}, strict=True), "response_format.json_schema.schema", "uniqueItems"),
        (schema({"enum": ["x" * 300_000]}), "response_format", "at most 262144"),
        ({"tools": [{"type": "custom"}]}, "tools[0].type", "'function'"),
        ({"tools": [GET] * 129}, "tools", "at most 128"),
        ({"tools": [GET, GET]}, "tools", "two are called get"),
        (tool(name="a b"), "tools[0].function.name", "match pattern"),
        (tool(name=None), "tools[0].function.name", "string"),
        (tool(parameters=[]), "tools[0].function.parameters", "dictionary"),
        (tool(parameters={"type": "array"}), "tools[0].function.parameters", "must describe an object"),
        (tool(parameters={"properties": 5}), "tools[0].function.parameters", "properties must be an object"),
        (tool(parameters={"not": {}}, strict=True), "tools[0].function.parameters", "not"),
        ({"tool_choice": "required"}, "tool_choice", "only allowed with tools"),
        ({"tools": [GET], "tool_choice": "any"}, "tool_choice", "'none', 'auto' or 'required'"),
        ({"tools": [GET], "tool_choice": NAMED}, "tool_choice", "names none of the tools"),
        ({"tools": [GET], "tool_choice": {"type": "function"}}, "tool_choice.function", "required"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls", "only allowed with tools"),
        ({"tools": [GET], "ignore_eos": True}, "ignore_eos", "not allowed with response_format or tools"),
        (turns({"role": "tool", "content": "1"}), "messages[1].tool_call_id", "required with role: tool"),
        (turns(RESULT), "messages[1].tool_call_id", "names no call"),
        (turns({"role": "user", "content": "1", "tool_call_id": "c"}), "messages[1].tool_call_id", "only"),
        (
            turns({"role": "user", "content": "1", "tool_calls": [MADE]}),
            "messages[1].tool_calls",
            "assistant",
        ),
        (turns({"role": "assistant", "content": None}), "messages[1].content", "required"),
        (
            turns(
                {"role": "assistant", "tool_calls": [MADE | {"function": {"name": "f", "arguments": "[1]"}}]}
            ),
            "messages[1].tool_calls[0].function.arguments",
            "the text of a JSON object",
        ),
    ],
)
async def test_what_is_refused(
    app: FastAPI, engine: FakeEngine, fields: dict[str, Any], param: str, words: str
) -> None:
    status, answer = await ask(app, **fields)
    error = answer["error"]
    assert (status, error["param"]) == (400, param) and words in error["message"], error
    assert error["message"].startswith(param) and engine.submitted == []


async def test_the_schema_at_fault_is_named_and_not_its_neighbours(app: FastAPI) -> None:
    bad = {
        "type": "function",
        "function": {"name": "put", "parameters": {"properties": {"a": {"type": "x"}}}},
    }
    for _ in range(2):  # the second time from memory
        status, answer = await ask(app, tools=[GET, bad])
        assert status == 400 and answer["error"]["param"] == "tools[1].function.parameters"


async def test_keywords_that_cannot_be_enforced_matter_with_strict_alone(app: FastAPI) -> None:
    status, _ = await ask(app, **schema({"type": "array", "uniqueItems": True}))
    assert status == 200


@pytest.fixture(scope="module")
def tokens(model_folder: Path, tokenizer: Tokenizer) -> LLTokenizer:
    return vocabulary(model_folder, sorted(tokenizer.eos_ids))


async def test_what_is_submitted(app: FastAPI, engine: FakeEngine, tokens: LLTokenizer) -> None:
    def may_be(text: str) -> bool:
        grammar = engine.submitted[-1].grammar
        assert grammar is not None and grammar.ends == tokens.eos_tokens
        matcher = compile_grammar(tokens, grammar.source)
        return matcher.consume_tokens(tokens.tokenize_str(text)) and matcher.is_accepting()

    await ask(app, response_format={"type": "json_object"})
    assert may_be('{"a": [1]}') and not may_be("[1]") and not may_be('{"a": [1]')
    await ask(app, **schema({"type": "integer", "x-guidance": {"whitespace_flexible": False}}))
    assert may_be("12") and not may_be("1.5")
    for nothing in (
        {"response_format": {"type": "text"}},
        {"tools": []},
        {"tools": [GET], "tool_choice": "none"},
    ):
        await ask(app, **nothing)
        assert engine.submitted[-1].grammar is None
    await ask(app, tools=[GET], n=2)
    assert engine.submitted[-1].grammar == engine.submitted[-2].grammar is not None


async def test_tools_are_shown_unless_none_may_be_called(
    app: FastAPI, engine: FakeEngine, tokenizer: Tokenizer
) -> None:
    def prompt() -> str:
        return tokenizer.decode(engine.submitted[-1].prompt)

    await ask(app, tools=[GET], max_tokens=1)
    assert '{"name": "get"' in prompt() and "<tool_call>" in prompt()
    await ask(app, tools=[GET], tool_choice="none")
    assert "get" not in prompt()


async def test_calls_in_whole_answers(app: FastAPI, engine: FakeEngine, tokenizer: Tokenizer) -> None:
    engine.say(f"Let me see.\n{CALLED}\n{CALLED}", stop_token=min(tokenizer.eos_ids))
    _, answer = await ask(app, tools=[GET])
    (choice,) = answer["choices"]
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls" and message["content"] == "Let me see."
    assert [(c["type"], c["function"]) for c in message["tool_calls"]] == 2 * [
        ("function", {"name": "get", "arguments": '{"a": "x"}'})
    ]
    assert len({call["id"] for call in message["tool_calls"]}) == 2
    engine.say(CALLED, stop_token=min(tokenizer.eos_ids))
    _, answer = await ask(app, tools=[GET])
    assert answer["choices"][0]["message"]["content"] is None
    engine.say("hello", stop_token=min(tokenizer.eos_ids))
    _, answer = await ask(app, tools=[GET])
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "hello", "refusal": None}
    assert answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("at_once", [1, 2, 7, 1000])
async def test_calls_in_streams(app: FastAPI, engine: FakeEngine, tokenizer: Tokenizer, at_once: int) -> None:
    engine.say(f"Well:\n{CALLED}\n{CALLED}", at_once=at_once, stop_token=min(tokenizer.eos_ids))
    async with client_of(app) as client:
        body = CHAT | {"tools": [GET], "stream": True, "logprobs": True}
        events = events_of((await client.post(PATH, json=body)).text)
    choices = [event["choices"][0] for event in events[:-1]]
    deltas = [choice["delta"] for choice in choices]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Well:"
    assert deltas[0]["role"] == "assistant" and all("role" not in delta for delta in deltas[1:])
    parts = [part for delta in deltas for part in delta.get("tool_calls", ())]
    assert [(p["index"], p["function"]["name"]) for p in parts if "id" in p] == [(0, "get"), (1, "get")]
    for number in (0, 1):
        assert "".join(p["function"]["arguments"] for p in parts if p["index"] == number) == '{"a": "x"}'
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["tool_calls"]
    # Also those of the text that only announces calls.
    scored = [t["token"] for c in choices for t in (c["logprobs"] or {"content": []})["content"]]
    assert "".join(scored) == f"Well:\n{CALLED}\n{CALLED}"


async def test_a_cut_call_is_no_call_that_was_made(app: FastAPI, engine: FakeEngine) -> None:
    engine.say(CALLED[: CALLED.index("x")])  # max_tokens
    _, answer = await ask(app, tools=[GET])
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"a": "'
    engine.say(CALLED)
    _, answer = await ask(app, tools=[GET], stop='"x')
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"a": '


async def test_an_answer_that_cannot_go_on_is_the_requests_fault(app: FastAPI, engine: FakeEngine) -> None:
    engine.script = [[5], InvalidRequest("response_format: too complex", param="response_format")]
    status, answer = await ask(app, response_format={"type": "json_object"})
    assert status == 400 and answer["error"]["param"] == "response_format"
    async with client_of(app) as client:
        body = CHAT | {"response_format": {"type": "json_object"}, "stream": True}
        events = events_of((await client.post(PATH, json=body)).text)
    assert events[-2]["error"]["param"] == "response_format" and events[-1] == "[DONE]"


async def test_hostile_schemas_hold_up_nobody_else(app: FastAPI) -> None:
    """Seconds of work: the event loop and requests without a schema go on meanwhile."""

    def hostile(number: int) -> dict[str, Any]:
        properties = {f"p{number}_{i}": {"type": "string"} for i in range(4000)}
        return CHAT | schema({"type": "object", "properties": properties})

    async with client_of(app) as client:
        tasks = [asyncio.create_task(client.post(PATH, json=hostile(number))) for number in range(3)]
        for _ in range(3):
            assert (await client.get("/health")).status_code == 200
            assert (await client.post(PATH, json=CHAT)).status_code == 200
        assert not all(task.done() for task in tasks)
        for refused in await asyncio.gather(*tasks):
            assert refused.status_code == 400 and "too big" in refused.json()["error"]["message"]


# ------------------------------------------------------------ conversations

NATIVE = (
    "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}{% for m in messages %}"
    "|{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}"
    "[{{ c.id }} {{ c.function.name }} {{ c.function.arguments.a }}]{% endfor %}"
    "{% if m.role == 'tool' %}({{ m.name }} {{ m.tool_call_id }}){% endif %}{% endfor %}"
)
CONVERSATION = turns(
    {"role": "assistant", "content": None, "tool_calls": [MADE, MADE | {"id": "c2", "index": 1}]},
    RESULT,
    RESULT | {"tool_call_id": "c2", "content": [{"type": "text", "text": "2"}]},
    {"role": "assistant", "content": "both"},
)


async def test_what_the_openai_package_has_parsed_may_come_back(app: FastAPI) -> None:
    function = MADE["function"] | {"parsed_arguments": {"a": "x"}}
    turn = {"role": "assistant", "content": "{}", "parsed": {}, "tool_calls": [MADE | {"function": function}]}
    status, answer = await ask(app, **turns(turn, RESULT))
    assert status == 200, answer


async def test_an_opening_that_is_a_special_token_is_seen(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path, template="{% if tools %}[TOOL_CALLS]{% endif %}hi")
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.add_special_tokens(["[TOOL_CALLS]"])
    backend.save(str(folder / "tokenizer.json"))
    tokenizer = Tokenizer(folder)
    opening = tokenizer.special_id("[TOOL_CALLS]")
    engine = FakeEngine(tokenizer)
    engine.say(' [{"name": "get", "arguments": {"a": "x"}}]', stop_token=min(tokenizer.eos_ids))
    engine.script = [tokenizer.encode("Well.")[1:], [opening], *engine.script]  # type: ignore[list-item]
    status, answer = await ask(make_app(engine, tokenizer), tools=[GET])
    assert status == 200, answer
    message = answer["choices"][0]["message"]
    assert message["content"] == "Well." and len(message["tool_calls"][0]["id"]) == 9
    assert message["tool_calls"][0]["function"] == {"name": "get", "arguments": '{"a": "x"}'}
    grammar = engine.submitted[0].grammar
    assert grammar is not None and f"<[{opening}]>" in grammar.source
    engine.say("a", stop_token=min(tokenizer.eos_ids))
    engine.script = [[opening], *engine.script]  # type: ignore[list-item]
    _, answer = await ask(make_app(engine, tokenizer))
    assert answer["choices"][0]["message"]["content"] == "a"  # without tools it is no text


async def test_a_template_that_reads_tools_gets_them(tmp_path: Path) -> None:
    tokenizer = Tokenizer(write_model_folder(tmp_path, template=NATIVE))
    engine = FakeEngine(tokenizer)
    engine.limits = Limits(8192, 8192)
    app = make_app(engine, tokenizer)
    status, answer = await ask(app, tools=[GET], max_tokens=5, **CONVERSATION)
    assert status == 200, answer
    shown = json.dumps([GET])
    assert tokenizer.decode(engine.submitted[0].prompt) == (
        f"<tool_call>{shown}|user: hi|assistant: [c1 get x][c2 get x]"
        "|tool: 1(get c1)|tool: 2(get c2)|assistant: both"
    )


async def test_any_other_template_gets_text(app: FastAPI, engine: FakeEngine, tokenizer: Tokenizer) -> None:
    status, answer = await ask(app, tools=[GET], max_tokens=5, **CONVERSATION)
    assert status == 200, answer
    system, _, rest = tokenizer.decode(engine.submitted[0].prompt).partition("user: ")
    assert system.startswith("system: ") and json.dumps(GET["function"]) in system
    response = "<tool_response>\n{}\n</tool_response>".format
    assert rest == (
        f"hi\nassistant: {CALLED}\n{CALLED}\nuser: {response(1)}\n{response(2)}\nassistant: both\nassistant:"
    )
    given = {"messages": [{"role": "system", "content": "Be kind."}, *CHAT["messages"]]}
    await ask(app, tools=[GET], max_tokens=5, **given)
    assert tokenizer.decode(engine.submitted[1].prompt).startswith("system: Be kind.\n\nYou can call")
