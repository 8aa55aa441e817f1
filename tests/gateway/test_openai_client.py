"""The official client, over a real socket."""

import asyncio
from collections.abc import AsyncIterator

import openai
import pytest

from services.gateway.tokenizer import Tokenizer
from shared.errors import GenerationFailed
from tests.gateway.fakes import MODEL, FakeEngine
from tests.gateway.server import served

TURNS: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def url(engine: FakeEngine, tokenizer: Tokenizer) -> AsyncIterator[str]:
    async with served(engine, tokenizer) as url:
        yield url


@pytest.fixture
async def client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


async def test_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == [MODEL]
    assert (await client.models.retrieve(MODEL)).id == MODEL


async def test_chat(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=TURNS)
    assert answer.choices[0].message.content == "hello there"
    assert answer.choices[0].finish_reason == "length" and answer.usage
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


async def test_an_answer_can_be_sent_back_as_it_came(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=TURNS)
    turns = [*TURNS, answer.choices[0].message, {"role": "user", "content": "and?"}]
    again = await client.chat.completions.create(model=MODEL, messages=turns)  # type: ignore[arg-type]
    assert again.choices[0].message.content == "hello there"


async def test_chat_stream(engine: FakeEngine, client: openai.AsyncOpenAI) -> None:
    engine.say("héllo 🎉 中文")
    stream = await client.chat.completions.create(
        model=MODEL, messages=TURNS, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "héllo 🎉 中文"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == [] and chunks[-1].usage and chunks[-1].usage.completion_tokens


async def test_completion_and_its_stream(client: openai.AsyncOpenAI) -> None:
    whole = await client.completions.create(model=MODEL, prompt="hi", max_tokens=5)
    stream = await client.completions.create(model=MODEL, prompt=[1, 2], max_tokens=5, stream=True)
    parts = [chunk.choices[0].text async for chunk in stream]
    assert "".join(parts) == whole.choices[0].text == "hello there"


async def test_errors_are_typed(engine: FakeEngine, client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(model=MODEL, messages=TURNS, n=129, stream=True)
    assert refused.value.param == "n"
    with pytest.raises(openai.NotFoundError):
        await client.chat.completions.create(model="gpt-4", messages=TURNS)
    engine.ready = (False, "loading")
    with pytest.raises(openai.InternalServerError):
        await client.chat.completions.create(model=MODEL, messages=TURNS)


async def test_a_failure_in_mid_stream_is_raised(engine: FakeEngine, client: openai.AsyncOpenAI) -> None:
    engine.say("ab")
    engine.script.append(GenerationFailed("stage 0 died"))
    stream = await client.chat.completions.create(model=MODEL, messages=TURNS, stream=True)
    with pytest.raises(openai.APIError, match="stage 0 died"):
        async for _ in stream:
            pass


async def test_closing_a_stream_aborts_the_job(engine: FakeEngine, client: openai.AsyncOpenAI) -> None:
    engine.script = [[5], asyncio.Event(), [6]]
    stream = await client.chat.completions.create(model=MODEL, messages=TURNS, stream=True)
    await engine.waiting.wait()
    await stream.close()
    await asyncio.wait_for(engine.abort_seen.wait(), 10)
    assert engine.aborted == [engine.submitted[0].job_id]


async def test_the_synchronous_client(engine: FakeEngine, url: str) -> None:
    engine.say("hello there", stop_token=1)

    def ask() -> list[str | None]:
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            chat = client.chat.completions.create(model=MODEL, messages=TURNS)
            chunks = client.chat.completions.create(model=MODEL, messages=TURNS, stream=True)
            completion = client.completions.create(model=MODEL, prompt="hi", max_tokens=5)
            texts = client.completions.create(model=MODEL, prompt="hi", max_tokens=5, stream=True)
            response = client.responses.create(model=MODEL, input="hi")
            with client.responses.stream(model=MODEL, input="hi") as events:
                streamed = events.get_final_response()
            return [
                chat.choices[0].message.content,
                "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
                completion.choices[0].text,
                "".join(chunk.choices[0].text for chunk in texts),
                response.output_text,
                streamed.output_text,
            ]

    assert await asyncio.to_thread(ask) == ["hello there"] * 6
