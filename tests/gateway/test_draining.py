"""Loading and draining: a 503 with a time to come back, while open answers come to their end."""

import asyncio
from typing import Any

import pytest

from deploy.draining import drain
from services.gateway.tokenizer import Tokenizer
from tests.application import Application
from tests.gateway.fakes import MODEL, FakeEngine, client_of, make_app

PATH = "/v1/completions"
COMPLETION: dict[str, Any] = {"model": MODEL, "prompt": "hi"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reason", ["the scheduler is loading", "the gateway is shutting down"])
async def test_who_comes_too_early_or_too_late_is_told_when_to_retry(
    engine: FakeEngine, tokenizer: Tokenizer, stream: bool, reason: str
) -> None:
    engine.ready = (False, reason)
    async with client_of(make_app(engine, tokenizer)) as client:
        answer = await client.post(PATH, json=COMPLETION | {"stream": stream})
        assert answer.status_code == 503 and int(answer.headers["retry-after"]) >= 1
        assert reason in answer.json()["error"]["message"]
        ready = await client.get("/ready")
        assert ready.status_code == 503 and int(ready.headers["retry-after"]) >= 1
        assert (await client.get("/health")).status_code == 200
    assert engine.submitted == []


async def test_open_answers_end_before_everything_is_stopped() -> None:
    async with Application(gateway={"drain_s": 120}) as app:
        body = app.completion("Once upon a time", 40, stream=True)
        async with app.http.stream("POST", PATH, json=body) as answer:
            lines = answer.aiter_lines()
            first = await anext(lines)
            draining = asyncio.create_task(drain(app.config, asyncio.Event()))
            hellos = await app.gateway.bus.subscribe(app.gateway.bus.subjects.hello("gateway"))
            while app.gateway._engine.ready[0]:
                await hellos.next()
            refused = await app.http.post(PATH, json=body)
            assert refused.status_code == 503 and refused.headers["retry-after"]
            assert not draining.done()
            rest = [line async for line in lines if line]
        assert '"finish_reason":"length"' in rest[-2] and rest[-1] == "data: [DONE]"
        assert len([first, *rest]) > 30
        assert await draining


async def test_draining_is_given_up_when_somebody_is_in_a_hurry() -> None:
    async with Application() as app:
        hurry = asyncio.Event()
        body = app.completion("Once upon a time", 1000, stream=True)
        async with app.http.stream("POST", PATH, json=body) as answer:
            await anext(answer.aiter_lines())
            draining = asyncio.create_task(drain(app.config, hurry))
            hurry.set()
            assert not await draining
        await app.settled()
