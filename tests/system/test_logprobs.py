"""Log-probabilities of many requests side by side are those that Hugging Face computes, within 1e-3."""

import asyncio
import random
from typing import Any, NamedTuple

import torch

from tests.application import Application
from tests.system.reference import TIE, WORDS, Reference

REQUESTS = 100
TOP = 5
CLOSE = 1e-3
AT_ONCE = 16
"""Sequences of one forward pass of the reference."""


class Scored(NamedTuple):
    """An answer: prompt and output ids, and of each output token its log-probability and the likeliest ones'.
    Of completions these may be fewer: they come by the token's text, which several ids may have.
    """

    prompt: list[int]
    output: list[int]
    logprobs: list[float]
    top: list[list[float]]


async def ask(app: Application, draw: random.Random, reference: Reference) -> Scored:
    """Words, or any token ids at all; a chat or a completion."""
    text = " ".join(draw.choices(WORDS, k=draw.randint(1, 12)))
    fields: dict[str, Any] = {
        "model": app.config.model.served_name,
        "temperature": 0,
        "max_tokens": draw.randint(1, 10),
        "ignore_eos": True,
        "return_token_ids": True,
    }
    if draw.random() < 0.3:
        body = fields | {"messages": [{"role": "user", "content": text}], "logprobs": True}
        answer = await app.http.post("/v1/chat/completions", json=body | {"top_logprobs": TOP})
        assert answer.status_code == 200, answer.text
        whole = answer.json()
        (choice,) = whole["choices"]
        tokens = choice["logprobs"]["content"]
        top = [[each["logprob"] for each in token["top_logprobs"]] for token in tokens]
        logprobs = [token["logprob"] for token in tokens]
        return Scored(whole["prompt_token_ids"], choice["token_ids"], logprobs, top)
    ids = [draw.randrange(len(reference.tokenizer)) for _ in range(draw.randint(1, 20))]
    prompt: str | list[int] = draw.choice([text, ids])
    answer = await app.http.post("/v1/completions", json=fields | {"prompt": prompt, "logprobs": TOP})
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    scored = choice["logprobs"]
    top = [sorted(named.values(), reverse=True) for named in scored["top_logprobs"]]
    return Scored(choice["prompt_token_ids"], choice["token_ids"], scored["token_logprobs"], top)


def expected(reference: Reference, answers: list[Scored]) -> list[torch.Tensor]:
    """Log-probabilities of all tokens where each output token was drawn, [output, vocabulary], by answer."""
    found: list[torch.Tensor] = []
    for start in range(0, len(answers), AT_ONCE):
        batch = answers[start : start + AT_ONCE]
        rows = [torch.tensor(each.prompt + each.output) for each in batch]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)  # behind, where a causal model is blind
        with torch.inference_mode():
            hidden = reference.model.model(ids, attention_mask=torch.ones_like(ids)).last_hidden_state
            for row, each in zip(hidden, batch, strict=True):
                first = len(each.prompt) - 1
                logits = reference.model.lm_head(row[first : first + len(each.output)])
                found.append(logits.float().log_softmax(-1))
    return found


async def test_logprobs_of_a_hundred_requests(reference: Reference) -> None:
    draw = random.Random(6)
    async with Application(scheduler={"max_batch_size": AT_ONCE}) as app, asyncio.timeout(300):
        answers = await asyncio.gather(
            *(ask(app, random.Random(draw.random()), reference) for _ in range(REQUESTS))
        )
        await app.settled()
    places = compared = 0
    for answer, scores in zip(answers, await asyncio.to_thread(expected, reference, answers), strict=True):
        output = torch.tensor(answer.output)
        own = scores.gather(-1, output[:, None])[:, 0]
        likeliest = scores.topk(TOP).values
        # The choice is the likeliest token but where two are as likely within rounding.
        assert (likeliest[:, 0] - own).max().item() < TIE
        torch.testing.assert_close(torch.tensor(answer.logprobs), own, atol=CLOSE, rtol=0)
        assert len(answer.top) == len(output)
        for place, told in enumerate(answer.top):
            places += 1
            if len(told) == TOP:
                compared += 1
                torch.testing.assert_close(torch.tensor(told), likeliest[place], atol=CLOSE, rtol=0)
    assert compared > 0.95 * places
