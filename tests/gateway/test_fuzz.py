"""Whatever the parameters are, the answer is 200 or a 4xx that names something; never a 5xx."""

import asyncio
import json
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.gateway import unsupported
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
names = st.sampled_from(
    sorted({*ChatRequest.model_fields, *CompletionRequest.model_fields, *unsupported.CHAT, "", "x.y"})
)
bodies = st.dictionaries(names, values, max_size=5)


@settings(max_examples=300, deadline=None)
@given(chat=st.booleans(), complete=st.booleans(), fields=bodies)
@example(chat=False, complete=True, fields={"temperature": 10**400})
@example(chat=False, complete=True, fields={"top_k": 10**400, "seed": -(2**63)})
@example(chat=False, complete=True, fields={"temperature": 5e-324, "top_p": 5e-324})
def test_no_parameters_give_a_5xx(
    tokenizer: Tokenizer, chat: bool, complete: bool, fields: dict[str, Any]
) -> None:
    source = {"messages": [{"role": "user", "content": "hi"}]} if chat else {"prompt": "hi"}
    body = ({"model": MODEL} | source if complete else {}) | fields
    path = "/v1/chat/completions" if chat else "/v1/completions"
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
