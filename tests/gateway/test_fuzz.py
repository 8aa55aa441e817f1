"""Whatever the parameters are, the answer is 200 or a 4xx that names something; never a 5xx.

For a release, longer: SKIPJOIN_FUZZ_EXAMPLES=5000 make test ARGS=tests/gateway/test_fuzz.py
"""

import asyncio
import json
import os
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.gateway import unsupported
from services.gateway.response_request import ResponseRequest
from services.gateway.schema import ChatRequest, CompletionRequest
from services.gateway.tokenizer import Tokenizer
from shared.messages import Limits
from tests.gateway.fakes import MODEL, FakeEngine, client_of, make_app

EXAMPLES = int(os.environ.get("SKIPJOIN_FUZZ_EXAMPLES", "100"))

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 400)
    | st.integers()
    | st.just(10**400)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["\ud800", "user", "text", MODEL])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)
SOURCES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
}
models = (ChatRequest, CompletionRequest, ResponseRequest)
names = st.sampled_from(
    sorted(
        {
            *(name for model in models for name in model.model_fields),
            *unsupported.CHAT, *unsupported.RESPONSE, *unsupported.RESPONSE_STORED, "", "x.y",
        }
    )
)  # fmt: skip
bodies = st.dictionaries(names, values, max_size=5)


keywords = st.sampled_from(
    [
        "type",
        "pattern",
        "format",
        "minimum",
        "maximum",
        "multipleOf",
        "maxItems",
        "minLength",
        "required",
        "properties",
        "items",
        "anyOf",
        "$ref",
        "const",
        "x-guidance",
        "patternProperties",
        "additionalProperties",
        "prefixItems",
        "$defs",
    ]
)
schemas = st.recursive(
    st.sampled_from(
        [{}, {"type": "string"}, {"type": "integer"}, {"enum": ["a", 1]}, {"$ref": "#"}, {"not": {}}]
    )
    | st.dictionaries(keywords, values, min_size=1, max_size=2),
    lambda inner: (
        st.builds(lambda of: {"type": "array", "items": of}, inner)
        | st.builds(lambda of: {"properties": of}, st.dictionaries(st.text(max_size=3), inner, max_size=3))
        | st.dictionaries(st.sampled_from(["anyOf", "allOf", "oneOf"]), st.lists(inner, max_size=3))
    ),
    max_leaves=8,
)
structured = st.fixed_dictionaries(
    {},
    optional={
        "response_format": values
        | st.builds(
            lambda schema, strict: {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": schema, "strict": strict},
            },
            schemas,
            st.sampled_from([True, False, None]),
        ),
        "tools": values
        | st.lists(
            st.builds(
                lambda name, schema: {"type": "function", "function": {"name": name, "parameters": schema}},
                st.sampled_from(["f", "g", "h"]),
                schemas,
            ),
            max_size=3,
        ),
        "tool_choice": values | st.sampled_from(["none", "auto", "required"]),
        "parallel_tool_calls": scalars,
    },
)


def with_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": schema, "strict": True},
        }
    }


responses = st.fixed_dictionaries(
    {},
    optional={
        "text": values
        | st.builds(
            lambda schema, strict: {
                "format": {"type": "json_schema", "name": "n", "schema": schema, "strict": strict}
            },
            schemas,
            st.sampled_from([True, False, None]),
        ),
        "tools": values
        | st.lists(
            st.builds(
                lambda name, schema: {"type": "function", "name": name, "parameters": schema},
                st.sampled_from(["f", "g", "h"]),
                schemas,
            ),
            max_size=3,
        ),
        "tool_choice": values
        | st.sampled_from(["none", "auto", "required", {"type": "function", "name": "f"}]),
        "parallel_tool_calls": scalars,
        "input": st.lists(
            st.fixed_dictionaries(
                {"type": scalars | st.sampled_from(["message", "function_call", "function_call_output"])},
                optional={
                    "role": scalars | st.sampled_from(["user", "assistant"]),
                    "content": values,
                    "call_id": scalars | st.just("c"),
                    "name": scalars | st.just("f"),
                    "arguments": scalars | st.sampled_from(["{}", "[", '{"a": NaN}']),
                    "output": values,
                },
            ),
            max_size=4,
        ),
    },
)


@settings(max_examples=EXAMPLES, deadline=None)
@given(fields=responses)
def test_no_items_and_forms_of_a_response_give_a_5xx(tokenizer: Tokenizer, fields: dict[str, Any]) -> None:
    assert_answered(tokenizer, "/v1/responses", {"model": MODEL, "input": "hi"} | fields, Limits(8192, 8192))


@settings(max_examples=EXAMPLES, deadline=None)
@given(fields=structured)
@example(fields=with_schema({"patternProperties": 1}))
@example(fields=with_schema({"patternProperties": {"(": {}}}))
def test_no_schemas_give_a_5xx(tokenizer: Tokenizer, fields: dict[str, Any]) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]} | fields
    assert_answered(tokenizer, "/v1/chat/completions", body, Limits(8192, 8192))


@settings(max_examples=EXAMPLES, deadline=None)
@given(path=st.sampled_from(sorted(SOURCES)), complete=st.booleans(), fields=bodies)
@example(path="/v1/completions", complete=True, fields={"temperature": 10**400})
@example(path="/v1/completions", complete=True, fields={"top_k": 10**400, "seed": -(2**63)})
@example(path="/v1/completions", complete=True, fields={"temperature": 5e-324, "top_p": 5e-324})
@example(path="/v1/responses", complete=True, fields={"truncation": "auto", "max_output_tokens": 10**400})
def test_no_parameters_give_a_5xx(
    tokenizer: Tokenizer, path: str, complete: bool, fields: dict[str, Any]
) -> None:
    body = ({"model": MODEL} | SOURCES[path] if complete else {}) | fields
    assert_answered(tokenizer, path, body)


def assert_answered(
    tokenizer: Tokenizer, path: str, body: dict[str, Any], limits: Limits | None = None
) -> None:
    engine = FakeEngine(tokenizer)
    engine.limits = limits or engine.limits

    async def send() -> tuple[int, str]:
        async with client_of(make_app(engine, tokenizer)) as client:
            answer = await client.post(
                path, content=json.dumps(body), headers={"content-type": "application/json"}
            )
            return answer.status_code, answer.text

    status, text = asyncio.run(send())
    assert status in (200, 400, 404), text
    if status != 200:
        assert set(json.loads(text)["error"]) == {"message", "type", "param", "code"}
        assert engine.submitted == []
