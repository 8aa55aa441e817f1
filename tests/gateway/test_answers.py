"""Answers in OpenAI's shape, whole and streamed."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.gateway import unsupported
from services.gateway.schema import ChatRequest, CompletionRequest
from services.gateway.tokenizer import Tokenizer
from shared.errors import GenerationFailed
from tests.gateway.fakes import MODEL, FakeEngine, client_of, events_of, make_app

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"model": MODEL, "prompt": "hi"}
KINDS = [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)]
STREAM = {"stream": True, "stream_options": {"include_usage": True}}


async def post(engine: FakeEngine, tokenizer: Tokenizer, path: str, body: dict[str, Any]) -> Any:
    async with client_of(make_app(engine, tokenizer)) as client:
        answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return events_of(answer.text) if body.get("stream") else answer.json()


def text_of(events: list[Any]) -> str:
    choices = [choice for event in events if event != "[DONE]" for choice in event["choices"]]
    return "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in choices)


async def test_a_whole_chat_answer(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    engine.say("hello there", stop_token=next(iter(tokenizer.eos_ids)))
    answer = await post(engine, tokenizer, "/v1/chat/completions", CHAT)
    assert answer.pop("id").startswith("chatcmpl-") and answer.pop("created") > 0
    generated = sum(len(step) for step in engine.script if isinstance(step, list))
    prompt = len(engine.submitted[0].prompt)
    assert answer == {
        "object": "chat.completion",
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "hello there", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": generated,  # the stop token counts
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
        "system_fingerprint": None,
    }


async def test_a_whole_completion(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    answer = await post(engine, tokenizer, "/v1/completions", COMPLETION)
    assert answer["id"].startswith("cmpl-") and answer["object"] == "text_completion"
    assert answer["choices"] == [
        {"index": 0, "text": "hello there", "logprobs": None, "finish_reason": "length"}
    ]


async def test_a_chat_stream(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    engine.say("abc")
    *chunks, done = await post(engine, tokenizer, "/v1/chat/completions", CHAT | {"stream": True})
    assert done == "[DONE]"
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant", "content": "a"},
        {"content": "b"},
        {"content": "c"},
    ]
    assert [choice["finish_reason"] for choice in choices] == [None, None, "length"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert not any("usage" in chunk for chunk in chunks)


async def test_a_completion_stream(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    engine.say("ab", stop_token=next(iter(tokenizer.eos_ids)))
    *chunks, done = await post(engine, tokenizer, "/v1/completions", COMPLETION | {"stream": True})
    assert done == "[DONE]"
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["text"] for choice in choices] == ["a", "b", ""]
    assert [choice["finish_reason"] for choice in choices] == [None, None, "stop"]


@pytest.mark.parametrize(("path", "body"), KINDS)
async def test_the_usage_chunk(
    engine: FakeEngine, tokenizer: Tokenizer, path: str, body: dict[str, Any]
) -> None:
    engine.say("abc")
    *chunks, usage, _ = await post(engine, tokenizer, path, body | STREAM)
    assert all(chunk["usage"] is None for chunk in chunks)
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 3
    for options in ({"include_usage": False}, {"include_usage": None}, {}, None):
        events = await post(engine, tokenizer, path, body | {"stream": True, "stream_options": options})
        assert not any("usage" in event for event in events[:-1])


@pytest.mark.parametrize(("path", "body"), KINDS)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text("ab中文🎉é\n", min_size=1, max_size=12),
    at_once=st.integers(1, 3),
    stops=st.lists(st.text("ab中🎉", min_size=1, max_size=2), max_size=2),
)
async def test_joined_deltas_are_the_whole_text(
    path: str, body: dict[str, Any], tokenizer: Tokenizer, text: str, at_once: int, stops: list[str]
) -> None:
    engine = FakeEngine(tokenizer)
    engine.say(text, at_once=at_once)
    body = body | {"stop": stops}
    events = await post(engine, tokenizer, path, body | STREAM)
    engine.say(text)
    whole = await post(engine, tokenizer, path, body)
    choice = whole["choices"][0]
    assert text_of(events) == (choice["text"] if "text" in choice else choice["message"]["content"])
    assert events[-2]["usage"] == whole["usage"]
    assert events[-3]["choices"][0]["finish_reason"] == choice["finish_reason"]
    assert not stops or all(stop not in text_of(events) for stop in stops)


async def test_no_event_while_a_character_is_incomplete(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    engine.say("🦊!")
    assert len(engine.script) > 2
    events = await post(engine, tokenizer, "/v1/completions", COMPLETION | {"stream": True})
    assert [event["choices"][0]["text"] for event in events[:-1]] == ["🦊", "!"]


async def test_a_stop_string_over_chunks(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    engine.say("a#x#-#end#b")
    body = COMPLETION | {"stream": True, "stop": ["#end#", "never"]}
    events = await post(engine, tokenizer, "/v1/completions", body)
    choices = [event["choices"][0] for event in events[:-1]]
    assert "".join(choice["text"] for choice in choices) == "a#x#-"
    assert all(choice["text"] for choice in choices[:-1])  # no empty chunks while text is held back
    assert [choice["finish_reason"] for choice in choices][-1] == "stop"
    assert engine.aborted == [engine.submitted[0].job_id]  # it would go on generating


async def test_a_possible_stop_string_is_flushed_at_the_end(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    engine.say("a#en")
    answer = await post(engine, tokenizer, "/v1/completions", COMPLETION | {"stop": "#end#"})
    assert answer["choices"][0] | {"index": 0} == {
        "index": 0, "text": "a#en", "logprobs": None, "finish_reason": "length",
    }  # fmt: skip


async def test_the_tokens_of_a_stop_string_count_whatever_the_timing(
    engine: FakeEngine, tokenizer: Tokenizer
) -> None:
    counts: set[int] = set()
    for at_once in (1, 2, 20):
        engine.say("a!!bbbbbbb", at_once=at_once)
        answer = await post(engine, tokenizer, "/v1/completions", COMPLETION | {"stop": "!!"})
        counts.add(answer["usage"]["completion_tokens"])
    assert len(counts) == 1


async def test_min_tokens_holds_for_stop_strings_too(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    for at_once in (1, 3):
        engine.say("!b!c!d", at_once=at_once)
        body = COMPLETION | {"stop": "!", "min_tokens": 3, "stop_token_ids": [7]}
        answer = await post(engine, tokenizer, "/v1/completions", body)
        assert answer["choices"][0]["text"] == "!b!c"
        assert answer["choices"][0]["finish_reason"] == "stop"
    submit = engine.submitted[-1]
    assert submit.min_tokens == 3 and submit.barred_token_ids == sorted({7, *tokenizer.eos_ids})


async def test_sampling_fields_are_handed_on(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    fields = {
        "min_p": 0.25, "presence_penalty": -1, "frequency_penalty": 0.5, "repetition_penalty": 1.5,
        "logit_bias": {"7": -100, "8": 1.5, "9": 0},
    }  # fmt: skip
    for path, body in KINDS:
        await post(engine, tokenizer, path, body | fields)
        sampling = engine.submitted[-1].sampling
        assert (sampling.min_p, sampling.presence_penalty, sampling.frequency_penalty) == (0.25, -1, 0.5)
        assert (sampling.repetition_penalty, sampling.logit_bias) == (1.5, {7: -100, 8: 1.5})


async def test_a_stop_token_has_no_text(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    (dot,) = tokenizer.encode("!")[1:]
    engine.say("ab", stop_token=dot)
    body = COMPLETION | {"stop_token_ids": [dot], "ignore_eos": True}
    answer = await post(engine, tokenizer, "/v1/completions", body)
    assert answer["choices"][0]["text"] == "ab" and answer["usage"]["completion_tokens"] == 3
    assert engine.submitted[0].stop_token_ids == [dot]


async def test_an_answer_without_text_has_a_role_and_an_end(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    engine.say("", stop_token=next(iter(tokenizer.eos_ids)))
    events = await post(engine, tokenizer, "/v1/chat/completions", CHAT | {"stream": True})
    assert [event["choices"][0] for event in events[:-1]] == [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]


async def test_a_failure_before_the_answer_is_a_500(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    engine.script = [[5], GenerationFailed("stage 0 died")]
    async with client_of(make_app(engine, tokenizer)) as client:
        answer = await client.post("/v1/completions", json=COMPLETION)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "generation_failed" and "stage 0 died" in answer.text


@pytest.mark.parametrize("error", [GenerationFailed("stage 0 died"), RuntimeError("a defect")])
@pytest.mark.parametrize(("path", "body"), KINDS)
async def test_a_failure_in_mid_stream_is_an_error_event_and_no_end(
    engine: FakeEngine, tokenizer: Tokenizer, path: str, body: dict[str, Any], error: Exception
) -> None:
    engine.say("ab")
    engine.script.append(error)
    events = await post(engine, tokenizer, path, body | STREAM)
    *chunks, failure, done = events
    assert text_of(chunks) == "ab" and done == "[DONE]"
    assert all(event["choices"][0]["finish_reason"] is None for event in chunks)
    assert set(failure) == {"error"} and failure["error"]["type"] == "server_error"


async def test_what_is_submitted(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    await post(engine, tokenizer, "/v1/completions", COMPLETION)
    plain = engine.submitted[-1]
    assert plain.prompt == tokenizer.encode("hi") and plain.max_tokens == 16
    assert plain.reply_to == engine.instance and plain.stop_token_ids == sorted(tokenizer.eos_ids)
    assert (plain.sampling.temperature, plain.sampling.top_p, plain.sampling.top_k) == (1.0, 1.0, 0)

    everything = {
        "temperature": 0, "top_p": 0.5, "top_k": 3, "seed": -5, "max_tokens": 4, "user": "me", "n": 1,
        "priority": -3,
        "logit_bias": {}, "presence_penalty": 0.0, "prompt": [[1, 2, 3]],
    }  # fmt: skip
    await post(engine, tokenizer, "/v1/completions", {"model": MODEL} | everything)
    full = engine.submitted[-1]
    assert (full.prompt, full.max_tokens) == ([1, 2, 3], 4)
    assert full.sampling.greedy and (full.sampling.top_p, full.sampling.top_k) == (0.5, 3)
    assert full.sampling.seed >= 0 and (full.priority, full.tenant) == (-3, "me")

    await post(engine, tokenizer, "/v1/chat/completions", CHAT)
    chat = engine.submitted[-1]
    assert len(chat.prompt) + chat.max_tokens == 256  # all the room left
    assert chat.prompt == tokenizer.encode_chat([{"role": "user", "content": "hi"}])


async def test_developer_is_system_and_text_parts_are_joined(
    engine: FakeEngine, tokenizer: Tokenizer
) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    turns = [{"role": "developer", "content": "brief"}, {"role": "user", "content": parts, "name": None}]
    await post(engine, tokenizer, "/v1/chat/completions", {"model": MODEL, "messages": turns})
    expected = [{"role": "system", "content": "brief"}, {"role": "user", "content": "one\ntwo"}]
    assert engine.submitted[0].prompt == tokenizer.encode_chat(expected)


async def test_seeds_differ_unless_given(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    for body in (COMPLETION, COMPLETION, COMPLETION | {"seed": 3}, COMPLETION | {"seed": 3}):
        await post(engine, tokenizer, "/v1/completions", body)
    seeds = [submit.sampling.seed for submit in engine.submitted]
    assert len(set(seeds[:2])) == 2 and seeds[2:] == [3, 3]


async def test_every_field_may_be_null(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    for (path, body), model, table in zip(
        KINDS, (ChatRequest, CompletionRequest), (unsupported.CHAT, unsupported.COMPLETION), strict=True
    ):
        nulls = dict.fromkeys([*model.model_fields, *table])
        await post(engine, tokenizer, path, nulls | body)


async def test_every_neutral_value_is_accepted(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    for (path, body), table in zip(KINDS, (unsupported.CHAT, unsupported.COMPLETION), strict=True):
        neutral = {name: values[0] for name, values in table.items() if values}
        await post(engine, tokenizer, path, neutral | body)
