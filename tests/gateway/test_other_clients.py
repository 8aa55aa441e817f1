"""Clients that are not ours and not OpenAI's own: LangChain and LiteLLM, over a real socket."""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # before its import: prices are not fetched
import litellm
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI

from services.gateway.tokenizer import Tokenizer
from shared.messages import FinishReason
from tests.gateway.fakes import MODEL, FakeEngine
from tests.gateway.server import served

TURNS = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def url(engine: FakeEngine, tokenizer: Tokenizer) -> AsyncIterator[str]:
    engine.say("héllo 🎉 中文", stop_token=1)
    async with served(engine, tokenizer) as url:
        yield url


def langchain(url: str, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(model=MODEL, base_url=url, api_key="none", max_retries=0, **options)


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_langchain(engine: FakeEngine, url: str, api: str) -> None:
    model = langchain(url, temperature=0, max_tokens=9, use_responses_api=api == "responses")
    turns = [SystemMessage("Be kind."), HumanMessage("hi"), AIMessage("yes?"), HumanMessage("so?")]
    for answer in (await asyncio.to_thread(model.invoke, turns), await model.ainvoke(turns)):
        assert answer.text == "héllo 🎉 中文"
        assert answer.usage_metadata and answer.usage_metadata["output_tokens"] > 0
    parts = await asyncio.to_thread(lambda: [chunk.text for chunk in model.stream(turns)])
    assert "".join(parts) == "héllo 🎉 中文" and len(parts) > 3
    assert "".join([chunk.text async for chunk in model.astream(turns)]) == "héllo 🎉 中文"
    assert {submit.max_tokens for submit in engine.submitted} == {9}
    assert len({tuple(submit.prompt) for submit in engine.submitted}) == 1 and len(engine.submitted) == 4


async def test_langchain_batches_logprobs_and_completions(engine: FakeEngine, url: str) -> None:
    answers = await langchain(url).abatch([[HumanMessage("a")], [HumanMessage("b")]])
    assert [answer.text for answer in answers] == ["héllo 🎉 中文"] * 2
    scored = await langchain(url, logprobs=True, top_logprobs=2).ainvoke("hi")
    assert len(scored.response_metadata["logprobs"]["content"][0]["top_logprobs"]) == 2
    completion = OpenAI(model=MODEL, base_url=url, api_key="none", max_retries=0, max_tokens=9)
    assert await completion.ainvoke("hi") == "héllo 🎉 中文"


async def test_litellm(engine: FakeEngine, url: str) -> None:
    options: dict[str, Any] = {
        "model": f"openai/{MODEL}",
        "api_base": url,
        "api_key": "none",
        "max_retries": 0,
    }
    whole = await asyncio.to_thread(lambda: litellm.completion(messages=TURNS, max_tokens=9, **options))
    later = await litellm.acompletion(messages=TURNS, **options)
    for answer in (whole, later):
        assert answer.choices[0].message.content == "héllo 🎉 中文"
        assert answer.choices[0].finish_reason == "stop" and answer.usage.completion_tokens
    stream = await litellm.acompletion(messages=TURNS, stream=True, **options)
    parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(parts) == "héllo 🎉 中文"

    def collect() -> str:
        stream = litellm.completion(messages=TURNS, stream=True, **options)
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    assert await asyncio.to_thread(collect) == "héllo 🎉 中文"


async def test_litellm_responses_and_errors(engine: FakeEngine, url: str) -> None:
    options: dict[str, Any] = {"model": f"openai/{MODEL}", "api_base": url, "api_key": "none"}
    answer = await litellm.aresponses(input="hi", **options)
    assert answer.output[0].content[0].text == "héllo 🎉 中文"
    stream = await litellm.aresponses(input="hi", stream=True, **options)
    assert [event.type async for event in stream][-1] == "response.completed"
    with pytest.raises(litellm.BadRequestError, match="max_tokens"):
        await litellm.acompletion(messages=TURNS, max_tokens=100_000, max_retries=0, **options)
    engine.finish = FinishReason.LENGTH
    cut = await litellm.acompletion(messages=TURNS, **options)
    assert cut.choices[0].finish_reason == "length"
