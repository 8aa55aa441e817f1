"""Log-probabilities in both of OpenAI's styles; streamed ones joined are the whole ones."""

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.gateway.jobs import OpenJobs
from services.gateway.tokenizer import Tokenizer
from shared.clock import VirtualClock
from shared.ids import JobId
from shared.messages import JobTokens, Sampling, Submit, TokenBatch, TokenLogprobs
from tests.gateway.fakes import EOS, FakeEngine, logprobs_of
from tests.gateway.test_answers import CHAT, COMPLETION, post

CHAT_PATH, COMPLETION_PATH = "/v1/chat/completions", "/v1/completions"


async def test_the_style_of_chats(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    (eos,) = tokenizer.eos_ids
    engine.say("a🎉", stop_token=eos)
    body = CHAT | {"logprobs": True, "top_logprobs": 2}
    choice = (await post(engine, tokenizer, CHAT_PATH, body))["choices"][0]
    tokens = [token for step in engine.script[:-1] for token in step]  # type: ignore[union-attr]
    content = choice["logprobs"]["content"]
    assert choice["logprobs"]["refusal"] is None
    assert len(content) == len(tokens)  # the stop token is no part of the content
    assert content[0]["token"] == "a" and content[0]["bytes"] == [97]
    assert b"".join(bytes(each["bytes"]) for each in content).decode() == choice["message"]["content"]
    if len(content) > 2:
        assert content[1]["token"].startswith("\\x")  # a part of a character, as its bytes
    for each, token in zip(content, tokens, strict=True):
        assert each["logprob"] == -token / 8
        assert [top["logprob"] for top in each["top_logprobs"]] == [-token / 8 + 1, -token / 8]
        assert each["top_logprobs"][1]["token"] == each["token"]
    assert engine.submitted[0].sampling.logprobs == 2


async def test_the_style_of_completions(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    engine.say("hello there")
    choice = (await post(engine, tokenizer, COMPLETION_PATH, COMPLETION | {"logprobs": 1}))["choices"][0]
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == choice["text"] == "hello there"
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert choice["text"][offset:].startswith(token)
    ids = tokenizer.encode("hello there")[1:]
    assert logprobs["token_logprobs"] == [-token / 8 for token in ids]
    # The drawn token is there although it is not among the likeliest ones.
    name = tokenizer.names.name
    assert logprobs["top_logprobs"] == [
        {name(token, "bytes:"): -token / 8, name(token + 1, "bytes:"): -token / 8 + 1} for token in ids
    ]


@pytest.mark.parametrize("value", [None, False])
async def test_none_are_asked_for_or_sent_by_default(
    engine: FakeEngine, tokenizer: Tokenizer, value: bool | None
) -> None:
    answer = await post(engine, tokenizer, CHAT_PATH, CHAT | {"logprobs": value, "top_logprobs": None})
    assert answer["choices"][0]["logprobs"] is None and engine.submitted[0].sampling.logprobs is None


async def test_zero_alternatives_still_score_the_token(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    chat = await post(engine, tokenizer, CHAT_PATH, CHAT | {"logprobs": True})
    assert all(each["top_logprobs"] == [] for each in chat["choices"][0]["logprobs"]["content"])
    text = await post(engine, tokenizer, COMPLETION_PATH, COMPLETION | {"logprobs": 0})
    assert all(len(each) == 1 for each in text["choices"][0]["logprobs"]["top_logprobs"])


def test_special_and_missing_tokens_have_names(tokenizer: Tokenizer) -> None:
    (eos,) = tokenizer.eos_ids
    last = tokenizer.vocab_size - 1
    assert (tokenizer.names.name(eos), tokenizer.names.name(last)) == (EOS, f"token_id:{last}")
    top = tokenizer.names.chat(())
    assert top.content == []


def test_what_json_cannot_say_is_a_large_negative_number(tokenizer: Tokenizer) -> None:
    from services.gateway.logprobs import Scored

    for value in (-math.inf, math.nan):
        scored = Scored(5, 0, TokenLogprobs(value, [5], [value]))
        assert tokenizer.names.completion((scored,)).token_logprobs == [-9999.0]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text("ab中🎉é!", min_size=1, max_size=12),
    at_once=st.integers(1, 3),
    stops=st.lists(st.text("ab中🎉!", min_size=1, max_size=3), max_size=2),
    chat=st.booleans(),
)
async def test_streamed_logprobs_are_the_whole_ones_and_cover_the_text(
    tokenizer: Tokenizer, text: str, at_once: int, stops: list[str], chat: bool
) -> None:
    engine = FakeEngine(tokenizer)
    path, body = (
        (CHAT_PATH, CHAT | {"logprobs": True}) if chat else (COMPLETION_PATH, COMPLETION | {"logprobs": 2})
    )
    body = body | {"stop": stops}
    engine.say(text, at_once=at_once)
    events = await post(engine, tokenizer, path, body | {"stream": True})
    engine.say(text)
    (choice,) = (await post(engine, tokenizer, path, body))["choices"]
    joined: dict[str, list[Any]] = {key: [] for key in choice["logprobs"] if key != "refusal"}
    for event in events[:-1]:
        for key, values in (event["choices"][0]["logprobs"] or {}).items():
            if values is not None:
                joined[key] += values
    whole = {key: values for key, values in choice["logprobs"].items() if key != "refusal"}
    assert joined == whole
    if not chat:
        sent = choice["text"]
        assert all(offset < len(sent) for offset in whole["text_offset"])
        assert whole["text_offset"] == sorted(whole["text_offset"])


def test_doubled_and_late_messages_keep_tokens_and_logprobs_aligned() -> None:
    jobs = OpenJobs(VirtualClock())
    job = jobs.open(Submit(JobId(1), "gateway", [1], 9, Sampling(logprobs=0)))
    for start, tokens in ((0, [10, 11]), (1, [11]), (1, [11, 12]), (0, [10]), (3, [13])):
        scored = [logprobs_of(token, 0) for token in tokens]
        jobs.deliver(TokenBatch([JobTokens(JobId(1), start, tokens, logprobs=scored)]))
    assert job.output == [10, 11, 12, 13]
    assert job._logprobs == [logprobs_of(token, 0) for token in job.output]
