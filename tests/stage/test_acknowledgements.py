"""Copies are acknowledged in the epoch in which they were begun, or not at all."""

import asyncio
from types import SimpleNamespace
from typing import Any

from services.stage.service import StageService
from shared.config import parse
from shared.ids import Epoch, TransferId
from shared.messages import Direction, TransferDone, Transferred
from shared.subjects import Subjects


def copied(transfer_id: int) -> Transferred:
    return Transferred(TransferId(transfer_id), Direction.OUT, 1, 1, 0.0)


class Bus:
    """on_publish: called while a message is on its way"""

    def __init__(self) -> None:
        self.epoch = Epoch(1)
        self.subjects = Subjects("test")
        self.sent: list[tuple[Epoch, int, list[int]]] = []
        self.on_publish: Any = None

    async def publish(self, subject: str, body: TransferDone) -> None:
        self.sent.append((self.epoch, body.rank, [done.transfer_id for done in body.done]))
        if self.on_publish is not None:
            await self.on_publish()


async def create_stage(reset: Any) -> tuple[StageService, Bus]:
    """In epoch 1, its loop of acknowledgements running."""
    stage, bus = StageService(parse({}), 0), Bus()
    stage._loop = asyncio.get_running_loop()
    stage.bus = bus  # type: ignore[assignment]
    stage._runner = SimpleNamespace(reset=reset)  # type: ignore[assignment]
    stage._copies_epoch = bus.epoch
    stage.supervisor.start("transfers", stage._report_transfers())
    return stage, bus


async def settle() -> None:
    """Everybody who can run does: what was put is taken, what can be sent is sent."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_one_message_per_rank() -> None:
    stage, bus = await create_stage(reset=None)
    for rank, transfer_id in ((0, 1), (1, 1), (0, 2)):
        stage._put_transfer((rank, copied(transfer_id)))
    await settle()
    assert bus.sent == [(1, 0, [1, 2]), (1, 1, [1])]
    await stage.supervisor.stop()


async def test_copies_that_end_while_a_new_epoch_begins_are_not_acknowledged_in_it() -> None:
    stage: StageService

    def reset() -> None:
        """In the compute thread: a copy ends, and the loop of acknowledgements has all the time it needs."""
        stage._put_transfer((0, copied(1)))
        asyncio.run_coroutine_threadsafe(settle(), stage._loop).result(10)

    stage, bus = await create_stage(reset)
    await stage._begin_epoch(Epoch(2))
    await settle()
    assert bus.sent == []
    stage._put_transfer((0, copied(1)))
    await settle()
    assert bus.sent == [(2, 0, [1])]
    await stage.supervisor.stop()


async def test_an_epoch_that_begins_between_the_messages_of_two_ranks() -> None:
    stage, bus = await create_stage(reset=lambda: None)

    begun = asyncio.Event()

    async def begin() -> None:
        bus.on_publish = None
        await stage._begin_epoch(Epoch(2))
        begun.set()

    bus.on_publish = begin
    for rank in (0, 1):
        stage._transfers.put_nowait((rank, copied(1)))
    await settle()
    async with asyncio.timeout(10):
        while bus.epoch == 1 or stage._copies_epoch == 1:
            await settle()
    assert bus.sent == [(1, 0, [1])]
    await stage.supervisor.stop()
