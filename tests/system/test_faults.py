"""A lost service costs time, never a token."""

import asyncio
import math
from collections.abc import Awaitable, Callable

import pytest

from services.kvcache.core import KVCache
from services.kvcache.service import KVCacheService
from services.scheduler.service import SchedulerService, Superseded
from services.stage.service import StageService
from shared.nats_server import EmbeddedNats
from shared.service import Service
from tests.application import Application
from tests.system.reference import Reference, make_prompt

STREAMS, TOKENS = 6, 40


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


async def stream_while(app: Application, break_it: Callable[[Application], Awaitable[None]]) -> list[str]:
    """The texts of a few streams, in the middle of which something is broken and mended."""
    running = asyncio.Event()

    async def stream(index: int) -> str:
        pieces: list[str] = []
        async for chunk in app.chunks(app.completion(make_prompt(index), TOKENS, temperature=0)):
            pieces.append(chunk["choices"][0]["text"])
            if len(pieces) == 5:
                running.set()
        return "".join(pieces)

    async def disturb() -> None:
        await running.wait()
        await break_it(app)

    *texts, _ = await asyncio.gather(*(stream(index) for index in range(STREAMS)), disturb())
    return texts


async def test_a_scheduler_that_makes_no_plan_gives_way_to_a_newer_one_too() -> None:
    """It has nothing to plan, or waits for a step of an epoch that is over: it must not wake up later."""
    async with Application() as app:
        old = app.scheduler
        async with asyncio.timeout(20):
            await replace_scheduler(app)
            await app.ready()
        assert any(isinstance(failure, Superseded) for failure in failures(old))
        answer = await app.http.post("/v1/completions", json=app.completion("Once", 3))
        assert answer.status_code == 200


def failures(service: Service) -> list[BaseException | None]:
    return [task.exception() for task in service.supervisor.tasks if task.done() and not task.cancelled()]


def assert_texts(reference: Reference, texts: list[str]) -> None:
    for index, text in enumerate(texts):
        assert text == reference.tokenizer.decode(reference.generate(make_prompt(index), TOKENS))


@pytest.mark.parametrize("replace", [replace_stage, replace_kvcache, replace_scheduler])
async def test_streams_survive_a_restarted_service(
    reference: Reference, replace: Callable[[Application], Awaitable[None]]
) -> None:
    async with Application(kv={"device_blocks": 24, "host_blocks": 64}) as app, asyncio.timeout(90):
        texts = await stream_while(app, replace)
        await asyncio.to_thread(assert_texts, reference, texts)
        await app.settled()


def corrupt(app: Application, disorder: Callable[[KVCache], None]) -> None:
    """Behind the manager's back, and the next plan looks for it."""
    disorder(app.kvcache._core)
    app.kvcache._checked = -math.inf


def lose_blocks(core: KVCache) -> None:
    core.device.allocate(2)


def lose_host_blocks(core: KVCache) -> None:
    core.host.allocate(2)


def share_a_block(core: KVCache) -> None:
    """Two jobs write to it from the next plan on, if that is granted."""
    one, other = [job for job in core._jobs.values() if job.device][:2]
    one.device[-1] = other.device[-1]
    one.table = one.table[:-4] + other.table[-4:]


@pytest.mark.parametrize("disorder", [lose_blocks, lose_host_blocks, share_a_block])
async def test_streams_survive_blocks_in_disorder(
    reference: Reference, caplog: pytest.LogCaptureFixture, disorder: Callable[[KVCache], None]
) -> None:
    async with Application(kv={"device_blocks": 24, "host_blocks": 64}) as app, asyncio.timeout(90):

        async def break_it(app: Application) -> None:
            corrupt(app, disorder)

        texts = await stream_while(app, break_it)
        await asyncio.to_thread(assert_texts, reference, texts)
        metrics = await app.settled()
        assert metrics["skipjoin_kv_integrity_violations_total"] == 1
        assert metrics['skipjoin_epochs_total{cause="lost KV"}'] == 1
        assert metrics['skipjoin_kv_blocks{state="free",tier="device"}'] == 24
    (violation,) = [record.getMessage() for record in caplog.records if record.levelname == "CRITICAL"]
    assert "all jobs are recomputed" in violation and "tier: blocks" in violation


async def restart_nats(app: Application) -> None:
    app.nats.stop()
    app.nats = EmbeddedNats(app.config.nats)


async def test_streams_survive_a_restarted_nats_server(reference: Reference) -> None:
    """Clients reconnect; what was under way is lost and is re-driven after the deadline."""
    async with Application(scheduler={"step_timeout_s": 2.0}) as app, asyncio.timeout(90):
        texts = await stream_while(app, restart_nats)
        await asyncio.to_thread(assert_texts, reference, texts)
        await app.settled()
