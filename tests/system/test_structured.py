"""JSON schemas and tools through the whole application, as the openai package uses them, while jobs are
swapped, recomputed and handed over to new services.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

import openai
import pytest
from openai.types.chat import ChatCompletion
from pydantic import BaseModel, Field

from tests.application import Application
from tests.system.reference import make_prompt
from tests.system.test_faults import replace_scheduler, replace_stage
from tests.system.test_pipelines import all_serve

Short = Annotated[str, Field(max_length=10)]
JOBS, TOKENS = 4, 80


class Person(BaseModel):
    name: Short
    age: int = Field(ge=0, le=150)
    mood: Literal["calm", "cheerful"]


class Weather(BaseModel):
    """Tells the weather of a city."""

    city: Literal["Paris", "Berlin", "New York"]
    unit: Literal["C", "F"]


TOOLS: Any = [openai.pydantic_function_tool(Weather)]


def client_of(app: Application) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{app.url}/v1", api_key="none", max_retries=0, timeout=120)


def asked(app: Application, text: str, **fields: Any) -> dict[str, Any]:
    model = app.config.model.served_name
    turns = [{"role": "user", "content": text}]
    return {"model": model, "messages": turns, "temperature": 0, "max_tokens": TOKENS} | fields


async def persons(
    app: Application, disturb: Callable[[Application], Awaitable[None]] | None = None
) -> list[str]:
    """What a few streams say, each of which is valid; in their middle something may be broken and mended."""
    running = asyncio.Event()

    async def one(index: int) -> str:
        fields = asked(app, make_prompt(index), response_format=Person)
        async with client_of(app) as client, client.chat.completions.stream(**fields) as stream:
            async for event in stream:
                if event.type == "content.delta" and event.snapshot.count('"') >= 4:
                    running.set()
            (choice,) = (await stream.get_final_completion()).choices
        assert choice.finish_reason == "stop" and choice.message.content
        assert choice.message.parsed == Person.model_validate_json(choice.message.content)
        return choice.message.content

    async def break_it() -> None:
        await running.wait()
        if disturb is not None:
            await disturb(app)

    async with asyncio.timeout(240):
        *answers, _ = await asyncio.gather(*(one(index) for index in range(JOBS)), break_it())
    return answers


async def test_answers_are_the_same_and_valid_whatever_happens_to_their_jobs() -> None:
    async with Application(kv={"device_blocks": 256, "host_blocks": 64, "prefix_reuse": False}) as app:
        expected = await persons(app)
        metrics = await app.settled()
        assert metrics["skipjoin_swap_out_blocks_total"] == 0
    assert len(set(expected)) > 1
    small = {"device_blocks": 14, "host_blocks": 64, "prefix_reuse": False}
    async with Application(kv=small) as app:
        assert await persons(app) == expected
        metrics = await app.settled()
        assert metrics["skipjoin_swap_out_blocks_total"] > 0
    async with Application(kv=small | {"swap_mode": "recompute"}, parallel={"pipeline_stages": 2}) as app:
        assert await persons(app) == expected
        metrics = await app.settled()
        assert metrics["skipjoin_kv_dropped_jobs_total"] > 0
    async with Application() as app:
        for disturb in (replace_stage, replace_scheduler):
            assert await persons(app, disturb) == expected


async def test_answers_are_the_same_however_the_model_is_shared_out() -> None:
    """Over ranks (three: the embedded model's heads are 9 and 3), stages and whole pipelines."""
    async with Application() as app:
        expected = await persons(app)
        await app.settled()
    for parallel in ({"tensor_parallel": 3}, {"pipeline_stages": 2}, {"replicas": 2}):
        async with Application(parallel=parallel) as app:
            if "replicas" in parallel:
                await all_serve(app)
            assert await persons(app) == expected, parallel
            metrics = await app.settled()
            if "replicas" in parallel:
                assert all(metrics[f'skipjoin_routed_jobs_total{{to="{each}"}}'] > 0 for each in (0, 1))


async def test_responses() -> None:
    async with Application() as app, client_of(app) as client:
        asked_of_responses: dict[str, Any] = {
            "model": app.config.model.served_name,
            "input": "What is the weather in Berlin?",
            "temperature": 0,
            "max_output_tokens": TOKENS,
        }
        person = await client.responses.parse(**asked_of_responses, text_format=Person)
        chat = await client.chat.completions.parse(
            **asked(app, asked_of_responses["input"], response_format=Person)
        )
        assert person.output_parsed and person.output_text == chat.choices[0].message.content
        tool: Any = {"type": "function", **TOOLS[0]["function"]}
        required = asked_of_responses | {"tools": [tool], "tool_choice": "required"}
        async with client.responses.stream(**required, parallel_tool_calls=False) as stream:
            deltas = [
                event.delta
                async for event in stream
                if event.type == "response.function_call_arguments.delta"
            ]
            final = await stream.get_final_response()
        (call,) = final.output
        assert call.type == "function_call" and call.arguments == "".join(deltas) and len(deltas) > 3
        Weather.model_validate_json(call.arguments)
        turns: Any = [
            {"role": "user", "content": asked_of_responses["input"]},
            call,
            {"type": "function_call_output", "call_id": call.call_id, "output": "It is 21 degrees."},
        ]
        said = await client.responses.create(
            **asked_of_responses | {"input": turns, "tools": [tool], "tool_choice": "none"}
        )
        assert said.output_text

        def synchronously() -> str:
            with openai.OpenAI(base_url=f"{app.url}/v1", api_key="none", max_retries=0) as sync:
                whole = sync.responses.create(**required, parallel_tool_calls=False)
                parts = sync.responses.create(**required, parallel_tool_calls=False, stream=True)
                joined = [
                    part.delta for part in parts if part.type == "response.function_call_arguments.delta"
                ]
                (made,) = whole.output
                assert made.type == "function_call" and made.arguments == "".join(joined)
                return made.arguments

        assert await asyncio.to_thread(synchronously) == call.arguments
        await app.settled()


async def test_tools() -> None:
    async with Application() as app, client_of(app) as client:

        def checked(answer: ChatCompletion) -> Any:
            (choice,) = answer.choices
            assert choice.finish_reason == "tool_calls" and choice.message.content is None
            assert choice.message.tool_calls
            for call in choice.message.tool_calls:
                assert call.type == "function" and call.function.name == "Weather" and call.id
                Weather.model_validate_json(call.function.arguments)
            return choice.message

        question = "What is the weather in Berlin?"
        create = client.chat.completions.create
        once = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
        message = checked(await create(**asked(app, question, **once)))
        named = {"type": "function", "function": {"name": "Weather"}}
        same = checked(await create(**asked(app, question, tools=TOOLS, tool_choice=named)))
        arguments = message.tool_calls[0].function.arguments
        assert same.tool_calls[0].function.arguments == arguments

        # streamed, through the package's helper
        async with client.chat.completions.stream(**asked(app, question, **once)) as stream:
            deltas = [
                event.arguments_delta
                async for event in stream
                if event.type == "tool_calls.function.arguments.delta"
            ]
            streamed = checked(await stream.get_final_completion())
        assert "".join(deltas) == arguments and len(deltas) > 3
        assert streamed.tool_calls[0].function.parsed_arguments == Weather.model_validate_json(arguments)

        # parsed, and its message sent back as it came together with the result
        parsed = await client.chat.completions.parse(**asked(app, question, **once))
        message = checked(parsed)
        turns = [
            *asked(app, question)["messages"],
            message,
            {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "It is 21 degrees."},
        ]
        answer = await create(
            **asked(app, question, tools=TOOLS, tool_choice="none", max_tokens=20) | {"messages": turns}
        )
        (choice,) = answer.choices
        assert choice.message.content and choice.message.tool_calls is None
        assert answer.usage and answer.usage.prompt_tokens > 30

        # left to the model: any text, or calls that are valid
        answer = await create(**asked(app, question, tools=TOOLS, max_tokens=40))
        if answer.choices[0].finish_reason == "tool_calls":
            checked(answer)
        else:
            assert answer.choices[0].message.content

        def synchronously() -> tuple[ChatCompletion, str]:
            fields = asked(app, question, **once)
            with openai.OpenAI(base_url=f"{app.url}/v1", api_key="none", max_retries=0) as sync:
                whole = sync.chat.completions.create(**fields)
                parts = sync.chat.completions.create(**fields, stream=True)
                calls = [call for chunk in parts for call in chunk.choices[0].delta.tool_calls or ()]
                return whole, "".join(call.function.arguments or "" for call in calls)

        whole, joined = await asyncio.to_thread(synchronously)
        assert checked(whole).tool_calls[0].function.arguments == joined == arguments
        await app.settled()


@pytest.mark.parametrize(
    "fields", [{"min_tokens": 9}, {"seed": 3, "temperature": 1.5, "presence_penalty": 2.0}]
)
async def test_a_complete_answer_ends_and_other_fields_choose_among_what_is_valid(
    fields: dict[str, Any],
) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": ["yes", "no", 5]}}}
    async with Application() as app:
        wanted = (
            asked(app, "Yes or no?", response_format=form, n=4, logprobs=True, logit_bias={"5": 50}) | fields
        )
        first, second = [await app.http.post("/v1/chat/completions", json=wanted) for _ in range(2)]
        assert first.status_code == 200, first.text
        choices = first.json()["choices"]
        assert {choice["message"]["content"] for choice in choices} <= {'"yes"', '"no"', "5"}
        assert {choice["finish_reason"] for choice in choices} == {"stop"}
        texts = [choice["message"]["content"] for choice in choices]
        assert texts == [choice["message"]["content"] for choice in second.json()["choices"]]
        assert all(choice["logprobs"]["content"] for choice in choices)
        too_much = {"properties": {f"p{i}": {"type": "string"} for i in range(700)}, "type": "object"}
        body = asked(
            app,
            "hi",
            response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": too_much}},
        )
        refused = await app.http.post("/v1/chat/completions", json=body)
        assert refused.status_code == 400 and refused.json()["error"]["code"] == "schema_too_complex"
        await app.settled()
