"""Both ends of a hop over a real NATS server, without a model."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from services.stage.transport import EpochOver, HopMetrics, Receiver, Sender, SharedMemory
from services.stage.transport.chunks import cut
from services.stage.transport.tensors import content_of
from shared.bus import Bus, Delivery, Subscription
from shared.config import Config, parse
from shared.errors import ActivationLost, BusError, ConfigError, PayloadTooLarge
from shared.ids import Epoch, StepId
from shared.messages import Meet, StepInput, StepPlan, TensorData
from shared.metrics import Registry
from shared.nats_server import EmbeddedNats, with_embedded_address
from shared.subjects import Subjects
from shared.supervise import Supervisor
from tests.stage.test_shared_memory import segments

FIRST, SECOND = Epoch(1), Epoch(2)
WAYS = ["inline", "shm", "chunked", "distributed"]


class Ends:
    """Stage 0's sender and stage 1's receiver; `elsewhere`: the shared memory of stage 1 is another one."""

    def __init__(self, config: Config, elsewhere: Path | None) -> None:
        self.config = config
        self.supervisor = Supervisor("hop")
        self.memories = [SharedMemory(), SharedMemory(elsewhere) if elsewhere else SharedMemory()]

    async def connect(self) -> None:
        self.buses = [
            await Bus.connect(self.config.nats, Subjects("hop").pipeline(0), f"stage{index}", Registry())
            for index in (0, 1)
        ]
        metrics = [HopMetrics(Registry(), index) for index in (0, 1)]
        self.sender = Sender(self.config, 0, self.buses[0], self.memories[0], metrics[0])
        self.receiver = Receiver(self.config.stage, 1, self.buses[1], self.memories[1], metrics[1])
        self.steps: Subscription = await self.buses[1].subscribe(self.buses[1].subjects.stage_step(1))
        for end in (self.sender, self.receiver):
            for name, loop in (await end.loops()).items():
                self.supervisor.start(name, loop)
        self.begin_epoch(FIRST)

    async def meet(self) -> None:
        """What a hello of the receiver makes the sender do."""
        async with asyncio.timeout(20):
            await self.sender._meet(self.buses[1].instance)
        assert self.sender.ready

    def begin_epoch(self, epoch: Epoch) -> None:
        for bus in self.buses:
            bus.epoch = epoch
        self.sender.begin_epoch()
        self.receiver.begin_epoch()

    async def send(self, number: int, hidden: Tensor, epoch: Epoch = FIRST) -> None:
        await self.sender.send(epoch, StepInput(StepPlan(StepId(number))), hidden)

    async def receive(self, epoch: Epoch = FIRST, *, take: bool = True) -> tuple[StepId, Tensor]:
        step = await self.next_step()
        hidden = await self.receiver.fetch(epoch, step)
        if take:
            await self.receiver.taken(step.plan.step_id)
        return step.plan.step_id, hidden

    async def next_step(self) -> StepInput:
        async with asyncio.timeout(20):
            step = (await self.steps.next()).body
        assert isinstance(step, StepInput)
        return step

    async def close(self) -> None:
        await self.supervisor.stop()
        self.sender.close()
        self.receiver.close()
        for memory in self.memories:
            memory.close()
        for bus in self.buses:
            await bus.close()


Connect = Callable[..., Any]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Makes ends with these keys of `stage`; `met`: the sender knows the receiver."""
    made: list[tuple[Ends, EmbeddedNats]] = []

    async def make(*, met: bool = True, elsewhere: Path | None = None, **stage: object) -> Ends:
        tree = {"stage": {"transfer_timeout_s": 5.0, **stage}, "nats": {"max_payload": 128 * 1024}}
        config = with_embedded_address(parse(tree))
        nats = EmbeddedNats(config.nats)
        ends = Ends(config, elsewhere)
        made.append((ends, nats))
        await ends.connect()
        if met:
            await ends.meet()
        return ends

    yield make
    for ends, nats in made:
        await ends.close()
        nats.stop()
    assert segments() == []


@pytest.mark.parametrize("way", WAYS)
async def test_every_bit_arrives_whatever_the_way(connect: Connect, way: str) -> None:
    ends = await connect(transport=way, chunk_bytes=1024, window_chunks=2)
    for number, dtype in enumerate((torch.float32, torch.float16, torch.bfloat16), start=1):
        hidden = torch.randn(33, 97).to(dtype)
        hidden[0, 0] = torch.nan
        sending = asyncio.create_task(ends.send(number, hidden))
        step_id, received = await ends.receive()
        await sending
        assert (step_id, received.dtype, received.shape) == (number, dtype, hidden.shape)
        assert content_of(received) == content_of(hidden)


async def test_inline_beyond_the_payload_is_a_typed_error_and_holds_nothing_up(connect: Connect) -> None:
    ends = await connect(transport="inline", unacknowledged=1)
    with pytest.raises(PayloadTooLarge, match="another activation transport"):
        await ends.send(1, torch.zeros(200 * 1024, dtype=torch.uint8))
    await ends.send(2, torch.ones(3))
    assert (await ends.receive())[0] == 2


async def test_auto_takes_pieces_that_fit_the_servers_payload(connect: Connect, tmp_path: Path) -> None:
    """chunk_bytes is four times max_payload here."""
    ends = await connect(elsewhere=tmp_path)
    hidden = torch.randn(100, 1000)
    sending = asyncio.create_task(ends.send(1, hidden))
    step = await ends.next_step()
    assert step.hidden is not None and step.hidden.chunks > 3
    received = await ends.receiver.fetch(FIRST, step)
    await sending
    assert torch.equal(received, hidden)


async def test_auto_where_shared_memory_is_full(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = await connect(inline_bytes=1)

    def full(*_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ends.memories[0], "write", full)
    sending = asyncio.create_task(ends.send(1, torch.ones(50)))
    assert torch.equal((await ends.receive())[1], torch.ones(50))
    await sending
    forced = await connect(transport="shm")
    monkeypatch.setattr(forced.memories[0], "write", full)
    with pytest.raises(BusError, match="enlarge it"):
        await forced.send(1, torch.ones(50))


async def test_forced_memory_that_the_next_stage_does_not_see(connect: Connect, tmp_path: Path) -> None:
    ends = await connect(met=False, transport="shm", elsewhere=tmp_path)
    with pytest.raises(ConfigError, match="different hosts or in different containers"):
        await ends.meet()
    with pytest.raises(ConfigError, match=r"stage\.transport"):
        Sender(ends.config, 0, ends.buses[0], SharedMemory(tmp_path / "none"), HopMetrics(Registry(), 0))


async def test_a_slow_receiver_holds_up_the_sender(connect: Connect) -> None:
    ends = await connect(transport="inline", unacknowledged=2)
    for number in (1, 2):
        await ends.send(number, torch.ones(4))
    third = asyncio.create_task(ends.send(3, torch.ones(4)))
    await ends.receive(take=False)
    await ends.buses[0].request(  # a round trip: an acknowledgement would have come by now
        ends.buses[0].subjects.stage_meet(1), Meet(), timeout=5
    )
    assert not third.done()
    await ends.receiver.taken(StepId(1))
    await third


async def test_control_messages_pass_a_large_payload(connect: Connect) -> None:
    ends = await connect(transport="chunked", chunk_bytes=1024, window_chunks=2)
    large = asyncio.create_task(ends.send(1, torch.zeros(4_000_000, dtype=torch.uint8)))
    await ends.next_step()
    bus = ends.buses[0]
    await bus.publish(bus.subjects.stage_step(1), StepPlan(StepId(2)))
    async with asyncio.timeout(20):
        assert (await ends.steps.next()).body == StepPlan(StepId(2))
    assert not large.done(), "it came only after all the pieces"
    ends.begin_epoch(SECOND)
    with pytest.raises(EpochOver):
        await large


async def test_pieces_before_their_step_out_of_order_and_twice(connect: Connect) -> None:
    ends = await connect(transport="chunked")
    hidden = torch.randn(10, 100)
    chunks = list(cut(StepId(1), content_of(hidden), 700))
    bus = ends.buses[0]
    for chunk in [*reversed(chunks), chunks[2]]:
        await bus.publish(bus.subjects.stage_chunk(1), chunk)
    step = StepInput(StepPlan(StepId(1)), TensorData("float32", [10, 100], chunks=len(chunks)))
    assert torch.equal(await ends.receiver.fetch(FIRST, step), hidden)


async def test_pieces_of_another_epoch_are_no_part_of_it(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stale one with the same step number and place; one of the epoch that is about to begin is kept."""
    ends = await connect(transport="chunked")
    bus, seen = ends.buses[0], ends.buses[1]
    old, new = torch.zeros(4), torch.ones(4)
    note, noted = ends.receiver._note, asyncio.Event()

    async def watched(delivery: Delivery) -> None:
        await note(delivery)
        if delivery.epoch == 3:
            noted.set()

    monkeypatch.setattr(ends.receiver, "_note", watched)
    seen.epoch = SECOND
    for epoch, hidden in ((FIRST, old), (Epoch(3), new)):
        bus.epoch = epoch
        (chunk,) = cut(StepId(1), content_of(hidden), 100)
        await bus.publish(bus.subjects.stage_chunk(1), chunk)
    step = StepInput(StepPlan(StepId(1)), TensorData("float32", [4], chunks=1))
    waiting = asyncio.create_task(ends.receiver.fetch(SECOND, step))
    async with asyncio.timeout(20):
        await noted.wait()
    assert not waiting.done()
    seen.epoch = Epoch(3)
    ends.receiver.begin_epoch()
    with pytest.raises(EpochOver):
        await waiting
    assert torch.equal(await ends.receiver.fetch(Epoch(3), step), new)


async def test_a_lost_piece_is_an_error_at_the_receiver_and_ends_the_sending(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = await connect(transport="chunked", chunk_bytes=1024, window_chunks=2, transfer_timeout_s=0.3)
    note, numbers = ends.receiver._note, itertools.count()

    async def lossy(delivery: Delivery) -> None:
        if next(numbers) != 3:
            await note(delivery)

    monkeypatch.setattr(ends.receiver, "_note", lossy)
    sending = asyncio.create_task(ends.send(1, torch.zeros(8 * 1024, dtype=torch.uint8)))
    with pytest.raises(ActivationLost, match=r"step 1: 7 of 8 pieces .*stage\.transfer_timeout_s"):
        await ends.receive()
    await ends.receiver.taken(StepId(1))
    await asyncio.wait([sending])
    sending = asyncio.create_task(ends.send(2, torch.ones(8 * 1024, dtype=torch.uint8)))
    assert (await ends.receive())[1].all()
    await sending


async def test_a_process_group_that_broke_is_made_anew(connect: Connect) -> None:
    ends = await connect(transport="distributed", transfer_timeout_s=1.0)
    with pytest.raises(ActivationLost, match=r"torch\.distributed"):
        await ends.send(1, torch.ones(1_000_000))  # nobody receives it
    assert not ends.sender.ready
    await ends.next_step()
    await ends.meet()
    sending = asyncio.create_task(ends.send(2, torch.ones(4)))
    assert torch.equal((await ends.receive())[1], torch.ones(4))
    await sending


async def test_a_neighbour_that_is_gone_is_waited_for(connect: Connect) -> None:
    """Not a failure after the other: that would end jobs with an error while the stage is being replaced."""
    ends = await connect(transport="distributed")
    ends.receiver._pair = None  # its process ends: the connection closes
    with pytest.raises(ActivationLost, match="the neighbour is gone"):
        for number in (1, 2):  # the first may still fit into the socket's buffer
            await ends.send(number, torch.ones(1_000_000))
    waiting = asyncio.create_task(ends.send(3, torch.ones(4)))
    await asyncio.sleep(0)
    assert not waiting.done()
    ends.begin_epoch(SECOND)
    with pytest.raises(EpochOver):
        await waiting


async def test_segments_are_used_again_once_taken_and_not_across_epochs(connect: Connect) -> None:
    ends = await connect(transport="shm", unacknowledged=2)

    async def send_one(number: int, epoch: Epoch = FIRST) -> tuple[StepInput, str]:
        await ends.send(number, torch.full((9,), float(number)), epoch)
        step = await ends.next_step()
        assert step.hidden is not None and step.hidden.segment is not None
        return step, step.hidden.segment

    (first, one), (second, two) = await send_one(1), await send_one(2)
    assert one != two
    for step in (first, second):
        hidden = await ends.receiver.fetch(FIRST, step)
        assert torch.equal(hidden, torch.full((9,), float(step.plan.step_id)))
    await ends.receiver.taken(second.plan.step_id)  # and so the first; the third waits for it
    (_, three), (_, four) = await send_one(3), await send_one(4)
    assert {three, four} == {one, two}
    ends.begin_epoch(SECOND)
    step, another = await send_one(1, SECOND)
    assert another not in (one, two)
    assert torch.equal(await ends.receiver.fetch(SECOND, step), torch.ones(9))
