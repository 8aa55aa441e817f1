"""The next turn of a conversation computes only what is new, and says what it would have said anyway."""

import asyncio
from typing import Any

import pytest

from tests.application import Application
from tests.system.reference import Reference, make_prompt

BLOCK = 16
HITS = "skipjoin_prefix_hit_tokens_total"


async def complete(app: Application, prompt: list[int], **fields: object) -> dict[str, Any]:
    body = {"model": app.config.model.served_name, "prompt": prompt, "temperature": 0, "ignore_eos": True}
    answer = await app.http.post("/v1/completions", json=body | {"max_tokens": 24} | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def cached_tokens(answer: dict[str, Any]) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("mode", ["proactive", "reactive"])
async def test_the_second_turn_begins_where_the_first_ended(
    reference: Reference, stages: int, mode: str
) -> None:
    async with Application(
        kv={"device_blocks": 64, "host_blocks": 64, "swap_mode": mode},
        parallel={"pipeline_stages": stages},
    ) as app:
        prompt = make_prompt(5)
        ids = reference.tokenizer.encode(prompt)
        first = await complete(app, ids)
        output = await asyncio.to_thread(reference.generate, prompt, 24)
        assert first["choices"][0]["text"] == reference.tokenizer.decode(output, skip_special_tokens=True)
        assert cached_tokens(first) == 0
        metrics = await app.settled()
        # The last token's KV was never needed.
        written = (len(ids) + 24 - 1) // BLOCK
        assert metrics["skipjoin_prefix_cached_blocks"] == written

        turn = prompt + reference.tokenizer.decode(output) + " And then, the engine of winter?"
        turn_ids = [*ids, *output, *reference.tokenizer.encode(" And then, the engine of winter?")]
        second = await complete(app, turn_ids)
        metrics = await app.settled()
        assert cached_tokens(second) == written * BLOCK == metrics[HITS]
        assert reference.tokenizer.encode(turn) == turn_ids, "else the reference answers something else"
        following = await asyncio.to_thread(reference.generate, turn, 24)
        expected = reference.tokenizer.decode(following, skip_special_tokens=True)
        assert second["choices"][0]["text"] == expected
        assert metrics["skipjoin_kv_integrity_violations_total"] == 0

        assert cached_tokens(await complete(app, turn_ids, cache_salt="another tenant")) == 0


async def test_turns_of_a_chat() -> None:
    """Whole and streamed, with what a cold server answers."""
    turns = [{"role": "user", "content": "Tell me about the sea, the wind and the ships that sail on it."}]
    answers: dict[bool, list[str]] = {}
    for reuse in (False, True):
        async with Application(kv={"device_blocks": 64, "host_blocks": 64, "prefix_reuse": reuse}) as app:
            fields = {"model": app.config.model.served_name, "temperature": 0, "max_tokens": 20}
            first = (await app.http.post("/v1/chat/completions", json=fields | {"messages": turns})).json()
            await app.settled()
            text = first["choices"][0]["message"]["content"]
            body = fields | {
                "messages": [
                    *turns,
                    {"role": "assistant", "content": text},
                    {"role": "user", "content": "Go on."},
                ]
            }
            second = (await app.http.post("/v1/chat/completions", json=body)).json()
            metrics = await app.settled()
            again = body | {"stream": True, "stream_options": {"include_usage": True}}
            stream = (await app.http.post("/v1/chat/completions", json=again)).text
            assert (cached_tokens(second) > first["usage"]["prompt_tokens"] - BLOCK) == reuse
            assert metrics[HITS] == cached_tokens(second)
            assert ('"cached_tokens":0}' not in stream) == reuse and '"cached_tokens":' in stream
            answers[reuse] = [text, second["choices"][0]["message"]["content"]]
    assert answers[True] == answers[False]
