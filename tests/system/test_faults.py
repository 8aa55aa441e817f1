"""A lost service costs time, never a token."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from services.kvcache.service import KVCacheService
from services.scheduler.service import SchedulerService
from services.stage.service import StageService
from tests.application import Application
from tests.system.reference import Reference, make_prompt

TOKENS = 40


async def replace_stage(app: Application) -> None:
    await app.stages[0].stop()
    app.stages[0] = StageService(app.config, 0)
    await app.stages[0].start()


async def replace_kvcache(app: Application) -> None:
    await app.kvcache.stop()
    app.kvcache = KVCacheService(app.config)
    await app.kvcache.start()


async def replace_scheduler(app: Application) -> None:
    """The new one starts while the old one still acts, as Ray does it for seconds."""
    old = app.scheduler
    app.scheduler = SchedulerService(app.config)
    await app.scheduler.start()
    await asyncio.wait(old.supervisor.tasks, return_when=asyncio.FIRST_COMPLETED)
    await old.stop()


@pytest.mark.parametrize("replace", [replace_stage, replace_kvcache, replace_scheduler])
async def test_streams_survive_a_restarted_service(
    reference: Reference, replace: Callable[[Application], Awaitable[None]]
) -> None:
    async with Application(kv={"device_blocks": 24, "host_blocks": 64}) as app:
        running = asyncio.Event()

        async def stream(index: int) -> str:
            body = {
                "model": app.config.model.served_name,
                "prompt": make_prompt(index),
                "max_tokens": TOKENS,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
            }
            async with app.http.stream("POST", "/v1/completions", json=body) as answer:
                assert answer.status_code == 200
                text, chunks = "", 0
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        import json

                        chunk = json.loads(line.removeprefix("data: "))
                        assert "error" not in chunk, chunk
                        text += chunk["choices"][0]["text"]
                        chunks += 1
                        if chunks == 5:
                            running.set()
                return text

        async def break_it() -> None:
            await running.wait()
            await replace(app)

        async with asyncio.timeout(90):
            *texts, _ = await asyncio.gather(*(stream(index) for index in range(6)), break_it())
        for index, text in enumerate(texts):
            expected = reference.tokenizer.decode(reference.generate(make_prompt(index), TOKENS))
            assert text == expected
        await app.settled()
