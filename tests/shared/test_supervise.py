"""A loop that ends or hangs makes the health check fail."""

import asyncio

import pytest

from shared.clock import VirtualClock
from shared.supervise import LoopDied, Supervisor


async def test_a_loop_that_raises_is_named_with_its_cause() -> None:
    supervisor = Supervisor("stage0")

    async def broken() -> None:
        raise ValueError("boom")

    supervisor.start("compute", broken())
    supervisor.check()
    await asyncio.wait(supervisor.tasks)
    with pytest.raises(LoopDied, match=r"stage0: loop compute ended: ValueError\('boom'\)"):
        supervisor.check()


async def test_a_loop_that_returns_is_dead_too() -> None:
    supervisor = Supervisor("stage0")

    async def short() -> None:
        return

    supervisor.start("inbox", short())
    await asyncio.wait(supervisor.tasks)
    with pytest.raises(LoopDied, match="loop inbox ended"):
        supervisor.check()


async def test_a_loop_without_progress_is_hung() -> None:
    clock = VirtualClock()
    supervisor = Supervisor("stage0", stale_after_s=30, clock=clock)
    supervisor.beat("hello")
    clock.advance(29)
    supervisor.check()
    clock.advance(2)
    with pytest.raises(LoopDied, match="loop hello made no progress for 31 s"):
        supervisor.check()


async def test_stopping_ends_the_loops_without_complaint() -> None:
    supervisor = Supervisor("stage0")
    ended = asyncio.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    supervisor.start("loop", forever())
    await asyncio.sleep(0)
    await supervisor.stop()
    assert ended.is_set()
    supervisor.check()


async def test_a_loop_that_loses_a_cancellation_is_cancelled_again() -> None:
    """As `asyncio.wait_for` of Python 3.11 does when what it waits for comes in the same moment."""
    supervisor = Supervisor("scheduler")
    lost = asyncio.Event()

    async def drive() -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if lost.is_set():
                    raise
                lost.set()

    supervisor.start("drive", drive())
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await supervisor.stop()
    assert supervisor.tasks[0].cancelled()
