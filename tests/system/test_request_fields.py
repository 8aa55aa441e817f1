"""Penalties and log-probabilities of the whole system, while services are replaced under it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import torch

from tests.application import Application
from tests.system.reference import Reference, make_prompt
from tests.system.test_faults import replace_scheduler, replace_stage

TOKENS, PENALTY = 32, 1.3
FIELDS = {"temperature": 0, "repetition_penalty": PENALTY, "logprobs": 2}
JOBS = 4


async def stream(app: Application, prompt: str, running: asyncio.Event) -> dict[str, Any]:
    """Text and joined log-probabilities."""
    answer: dict[str, Any] = {"text": "", "tokens": [], "token_logprobs": [], "text_offset": []}
    async for chunk in app.chunks(app.completion(prompt, TOKENS, **FIELDS)):
        (choice,) = chunk["choices"]
        answer["text"] += choice["text"]
        for name, values in (choice["logprobs"] or {}).items():
            if name in answer:
                answer[name] += values
        if len(answer["tokens"]) >= 5:
            running.set()
    return answer


@pytest.mark.parametrize("replace", [replace_stage, replace_scheduler])
async def test_penalised_streams_with_logprobs_survive_a_restart(
    reference: Reference, replace: Callable[[Application], Awaitable[None]]
) -> None:
    async with Application(kv={"device_blocks": 12, "host_blocks": 32}) as app, asyncio.timeout(90):
        running = asyncio.Event()

        async def disturb() -> None:
            await running.wait()
            await replace(app)

        prompts = [make_prompt(index) for index in range(JOBS)]
        *answers, _ = await asyncio.gather(*(stream(app, each, running) for each in prompts), disturb())
        await app.settled()
    for prompt, answer in zip(prompts, answers, strict=True):
        tokens = reference.generate(prompt, TOKENS, repetition_penalty=PENALTY)
        assert answer["text"] == reference.tokenizer.decode(tokens, skip_special_tokens=True)
        ids = reference.tokenizer.encode(prompt)
        with torch.inference_mode():
            logits = reference.model(torch.tensor([ids + tokens])).logits[0, len(ids) - 1 : -1]
        scores = logits.log_softmax(-1)[range(TOKENS), tokens]
        torch.testing.assert_close(torch.tensor(answer["token_logprobs"]), scores, atol=1e-3, rtol=0)
        starts = [answer["text"][offset:] for offset in answer["text_offset"]]
        assert all(map(str.startswith, starts, answer["tokens"]))


async def test_choices_depend_on_the_seed_and_not_on_their_company() -> None:
    async with Application() as app:
        body = {
            "model": app.config.model.served_name,
            "max_tokens": 12,
            "ignore_eos": True,
            "presence_penalty": 0.5,
            "seed": 3,
        }

        async def texts(**fields: Any) -> list[str]:
            answer = await app.http.post("/v1/completions", json=body | fields)
            assert answer.status_code == 200, answer.text
            return [choice["text"] for choice in answer.json()["choices"]]

        prompts = [make_prompt(1), make_prompt(2)]
        together = await texts(prompt=prompts, n=2)
        alone = [*await texts(prompt=prompts[0], n=2), *await texts(prompt=prompts[1], n=2)]
        assert together == alone and len(set(together)) == 4
        assert await texts(prompt=prompts[0], seed=4) == together[1:2]
