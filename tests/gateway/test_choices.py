"""Several choices of one request: `n` answers, several prompts; streamed and whole, by the real client."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import openai
import pytest

from services.gateway.tokenizer import Tokenizer
from shared.errors import GenerationFailed, NotReady
from tests.gateway.fakes import MODEL, FakeEngine, make_app
from tests.gateway.test_openai_client import served

TURNS: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def client(engine: FakeEngine, tokenizer: Tokenizer) -> AsyncIterator[openai.AsyncOpenAI]:
    transport = httpx.ASGITransport(make_app(engine, tokenizer), raise_app_exceptions=False)
    http = httpx.AsyncClient(transport=transport)
    async with openai.AsyncOpenAI(
        base_url="http://gateway/v1", api_key="none", max_retries=0, http_client=http
    ) as client:
        yield client


def say(engine: FakeEngine, tokenizer: Tokenizer, *texts: str) -> None:
    engine.scripts = [[[token] for token in tokenizer.encode(text)[1:]] for text in texts]


async def test_n_chat_answers(engine: FakeEngine, tokenizer: Tokenizer, client: openai.AsyncOpenAI) -> None:
    say(engine, tokenizer, "one", "number two", "三")
    answer = await client.chat.completions.create(model=MODEL, messages=TURNS, n=3, seed=40)
    texts = [(choice.index, choice.message.content) for choice in answer.choices]
    assert texts == [(0, "one"), (1, "number two"), (2, "三")]
    assert [submit.sampling.seed for submit in engine.submitted] == [40, 41, 42]
    assert len({submit.job_id for submit in engine.submitted}) == 3
    assert answer.usage and answer.usage.prompt_tokens == len(engine.submitted[0].prompt)
    assert answer.usage.completion_tokens == sum(map(len, engine.scripts))


async def test_n_streamed_chat_answers(
    engine: FakeEngine, tokenizer: Tokenizer, client: openai.AsyncOpenAI
) -> None:
    say(engine, tokenizer, "one", "number two")
    stream = await client.chat.completions.create(
        model=MODEL, messages=TURNS, n=2, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = [chunk async for chunk in stream]
    texts, roles, ends = ["", ""], [0, 0], [0, 0]
    for chunk in chunks:
        (choice,) = chunk.choices
        assert not ends[choice.index]
        texts[choice.index] += choice.delta.content or ""
        roles[choice.index] += choice.delta.role is not None
        ends[choice.index] += choice.finish_reason is not None
    assert (texts, roles, ends) == (["one", "number two"], [1, 1], [1, 1])
    assert last.choices == [] and last.usage
    assert last.usage.completion_tokens == sum(map(len, engine.scripts))


@pytest.mark.parametrize("kind", ["texts", "token ids"])
async def test_choices_of_several_prompts_are_numbered_prompt_by_prompt(
    engine: FakeEngine, tokenizer: Tokenizer, client: openai.AsyncOpenAI, kind: str
) -> None:
    texts = ["hello", "the quick"]
    prompt = texts if kind == "texts" else [tokenizer.encode(text) for text in texts]
    say(engine, tokenizer, "a", "b", "c", "d")
    answer = await client.completions.create(model=MODEL, prompt=prompt, n=2, best_of=2, seed=-1)
    assert [(choice.index, choice.text) for choice in answer.choices] == list(enumerate("abcd"))
    assert [submit.prompt for submit in engine.submitted] == [
        tokenizer.encode(text) for text in texts for _ in range(2)
    ]
    seeds = [submit.sampling.seed for submit in engine.submitted]
    assert seeds[:2] == seeds[2:] and seeds[0] != seeds[1]
    assert answer.usage and answer.usage.prompt_tokens == sum(len(tokenizer.encode(text)) for text in texts)


async def test_the_four_forms_of_one_prompt_are_the_same(
    engine: FakeEngine, tokenizer: Tokenizer, client: openai.AsyncOpenAI
) -> None:
    ids = tokenizer.encode("hello")
    for prompt in ("hello", ["hello"], ids, [ids]):
        answer = await client.completions.create(model=MODEL, prompt=prompt, echo=True)
        assert answer.choices[0].text == "hello" + "hello there"
    assert [submit.prompt for submit in engine.submitted] == [ids] * 4


async def test_an_echoed_prompt_is_streamed_once_and_stops_nothing(
    engine: FakeEngine, tokenizer: Tokenizer, client: openai.AsyncOpenAI
) -> None:
    say(engine, tokenizer, "abc!d", "")
    engine.scripts[1] = [[next(iter(tokenizer.eos_ids))]]  # an answer without text
    stream = await client.completions.create(
        model=MODEL, prompt=["hi!", "ho!"], echo=True, stop="!", stream=True
    )
    texts = ["", ""]
    async for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == ["hi!abc", "ho!"]


async def test_random_seeds_of_choices_differ(engine: FakeEngine, client: openai.AsyncOpenAI) -> None:
    await client.chat.completions.create(model=MODEL, messages=TURNS, n=4)
    assert len({submit.sampling.seed for submit in engine.submitted}) == 4


@pytest.mark.parametrize("stream", [True, False])
async def test_a_refusal_of_one_choice_refuses_all(
    engine: FakeEngine, client: openai.AsyncOpenAI, stream: bool
) -> None:
    engine.script = [asyncio.Event(), [5]]  # the accepted ones wait for ever
    engine.refusal, engine.refused_from = NotReady("full"), 2
    with pytest.raises(openai.InternalServerError) as refused:
        await client.chat.completions.create(model=MODEL, messages=TURNS, n=3, stream=stream)
    assert refused.value.status_code == 503
    assert sorted(engine.aborted) == sorted(submit.job_id for submit in engine.submitted[:2])


async def test_a_failure_of_one_choice_ends_the_stream_and_aborts_the_others(
    engine: FakeEngine, tokenizer: Tokenizer
) -> None:
    fail = asyncio.Event()
    engine.scripts = [[[5], fail, GenerationFailed("stage 0 died")], [[5], asyncio.Event(), [6]]]
    async with (
        served(engine, tokenizer) as url,
        openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client,
    ):
        stream = await client.completions.create(model=MODEL, prompt="x", n=2, stream=True)
        with pytest.raises(openai.APIError, match="stage 0 died"):
            async for chunk in stream:
                assert chunk.choices[0].finish_reason is None
                fail.set()
    assert engine.aborted == [engine.submitted[1].job_id]
