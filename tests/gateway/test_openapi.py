"""/openapi.json describes all and says what is true: schemathesis asks for whatever it allows and forbids,
and reads the answers. Bounded and the same in every run; `python -m tests.openapi_run` is the long one.
"""

import asyncio

from services.gateway.tokenizer import Tokenizer
from tests.gateway.fakes import MODEL, FakeEngine, client_of, make_app
from tests.gateway.server import served
from tests.gateway.test_keys import key, ring
from tests.openapi_run import run

LONGEST_S = 300.0
"""It is stuck then: on an idle machine it takes half a minute. The long run tries all border cases, too."""


async def test_every_operation_does_as_it_says(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    async with served(engine, tokenizer, max_body_bytes=2**22) as url, asyncio.timeout(LONGEST_S):
        document = url.replace("/v1", "/openapi.json")
        options = ("--generation-deterministic", "--no-shrink")
        status, report = await run(document, 30, *options, phases="fuzzing")
    assert status == 0, report


async def test_every_field_and_answer_is_described(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    async with client_of(make_app(engine, tokenizer)) as client:
        document = (await client.get("/openapi.json")).json()
    for name, model in document["components"]["schemas"].items():
        for field, known in model.get("properties", {}).items():
            assert known.get("description") or "const" in known, f"{name}.{field}"
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert operation["description"], path
            assert all(answer["description"] for answer in operation["responses"].values()), path
            if path.startswith("/v1"):
                assert {"4XX", "5XX"} <= operation["responses"].keys(), path
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
        answers = document["paths"][path]["post"]["responses"]
        assert answers["200"]["content"].keys() == {"application/json", "text/event-stream"}
        assert "Retry-After" in answers["429"]["headers"] and "Retry-After" in answers["503"]["headers"]
    assert document["components"]["schemas"]["ChatRequest"]["properties"]["model"]["enum"] == [MODEL]


async def test_what_is_not_supported_is_in_it_with_the_values_that_are_taken(
    engine: FakeEngine, tokenizer: Tokenizer
) -> None:
    async with client_of(make_app(engine, tokenizer)) as client:
        document = (await client.get("/openapi.json")).json()
    fields = document["components"]["schemas"]["CompletionRequest"]["properties"]
    assert fields["use_beam_search"]["enum"] == [None, False]


async def test_with_keys_it_asks_for_one(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    app = make_app(engine, tokenizer, keyring=ring(key("alice")))
    document = app.openapi()
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    secured = {
        path for path, operations in document["paths"].items() for o in operations.values() if "security" in o
    }
    assert document["paths"].keys() - secured == {"/health", "/ready"}


async def test_its_examples_are_answered(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    async with client_of(make_app(engine, tokenizer)) as client:
        document = (await client.get("/openapi.json")).json()
        posts = {path: each["post"] for path, each in document["paths"].items() if "post" in each}
        for path in posts.keys() - {"/v1/pipelines"}:  # a number, which is described
            body = posts[path]["requestBody"]["content"]["application/json"]["example"]
            answer = await client.post(path, json=body)
            assert answer.status_code == 200, answer.text
