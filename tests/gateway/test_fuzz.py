"""Whatever the parameters are, the answer is 200 or a 4xx that names something; never a 5xx."""

import asyncio
import json
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.gateway import unsupported
from services.gateway.response_request import ResponseRequest
from services.gateway.schema import ChatRequest, CompletionRequest
from services.gateway.tokenizer import Tokenizer
from tests.gateway.fakes import MODEL, FakeEngine, client_of, make_app

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


@settings(max_examples=300, deadline=None)
@given(path=st.sampled_from(sorted(SOURCES)), complete=st.booleans(), fields=bodies)
@example(path="/v1/completions", complete=True, fields={"temperature": 10**400})
@example(path="/v1/completions", complete=True, fields={"top_k": 10**400, "seed": -(2**63)})
@example(path="/v1/completions", complete=True, fields={"temperature": 5e-324, "top_p": 5e-324})
@example(path="/v1/responses", complete=True, fields={"truncation": "auto", "max_output_tokens": 10**400})
def test_no_parameters_give_a_5xx(
    tokenizer: Tokenizer, path: str, complete: bool, fields: dict[str, Any]
) -> None:
    body = ({"model": MODEL} | SOURCES[path] if complete else {}) | fields
    engine = FakeEngine(tokenizer)

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
