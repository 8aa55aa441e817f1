"""The way from the stage before: puts activations together, and says what has arrived and what was taken."""

import asyncio
import logging
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from services.stage.transport.choice import Way
from services.stage.transport.chunks import Assembly
from services.stage.transport.credits import EpochOver
from services.stage.transport.pair import Pair
from services.stage.transport.shared_memory import MEETING_BYTES, SharedMemory, in_thread_if_large
from services.stage.transport.telemetry import HopMetrics
from services.stage.transport.tensors import empty, restore
from shared.bus import Bus, Delivery
from shared.config import StageConfig
from shared.errors import ActivationLost, BusError
from shared.ids import Epoch, StepId
from shared.messages import Chunk, Meet, Met, Receipt, StepInput, TensorData

log = logging.getLogger("skipjoin.stage")

_RECEIPTS_A_WINDOW = 2
"""The sender goes on after half a window, so that the link is never empty."""


class _Incoming:
    """The pieces of one step, and whoever waits for more of them."""

    def __init__(self, count: int) -> None:
        self.assembly = Assembly(count)
        self.changed = asyncio.Event()
        self.over = False


class Receiver:
    """Of stage `index`, which is not the first one. `loops` must run."""

    def __init__(
        self, config: StageConfig, index: int, bus: Bus, memory: SharedMemory, metrics: HopMetrics
    ) -> None:
        self._config = config
        self._index = index
        self._bus = bus
        self._memory = memory
        self._metrics = metrics
        self._incoming: dict[tuple[Epoch, StepId], _Incoming] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="receive")
        self._pair: Pair | None = None
        self._taken = (bus.epoch, StepId(0))
        self._receipt_every = max(1, config.window_chunks // _RECEIPTS_A_WINDOW)

    async def loops(self) -> dict[str, Coroutine[Any, Any, None]]:
        """Subscribed already; by name, for the supervisor."""
        subjects = self._bus.subjects
        chunks = await self._bus.subscribe(subjects.stage_chunk(self._index))
        meetings = await self._bus.subscribe(subjects.stage_meet(self._index))

        async def read_chunks() -> None:
            async for delivery in chunks:
                await self._note(delivery)

        async def answer() -> None:
            async for delivery in meetings:
                if isinstance(delivery.body, Meet):
                    await self._bus.reply(delivery, await self._met(delivery.body))

        return {"chunks": read_chunks(), "stage before": answer()}

    async def _met(self, offer: Meet) -> Met:
        content = b""
        if offer.segment:
            try:
                found = torch.empty(MEETING_BYTES, dtype=torch.uint8)
                self._memory.read(offer.segment, found)
                content = found.numpy().tobytes()
            except (BusError, OSError):
                pass  # another host: that is what was to be found out
        self._pair = None
        if offer.store:
            try:
                self._pair = await self._in_thread(Pair.join, offer.store, self._config.transfer_timeout_s)
            except ActivationLost as error:
                log.warning("%s", error)
        return Met(content, self._pair is not None)

    async def _note(self, delivery: Delivery) -> None:
        """A piece has come, perhaps before the step that it belongs to."""
        chunk = delivery.body
        if not isinstance(chunk, Chunk):
            return
        if delivery.epoch < self._bus.epoch:
            self._bus.count("stale_epoch")
            return
        if (delivery.epoch, chunk.step_id) <= self._taken:
            return  # twice, or of a step that was given up: steps come one after the other
        # Of a newer epoch: the step's own message, on another subscription, is about to begin it.
        incoming = self._incoming_of(delivery.epoch, chunk.step_id, chunk.count)
        if not incoming.assembly.add(chunk):
            return
        incoming.changed.set()
        arrived = incoming.assembly.arrived
        if incoming.assembly.complete or arrived % self._receipt_every == 0:
            await self._acknowledge(Receipt(chunk.step_id, arrived))

    def _incoming_of(self, epoch: Epoch, step_id: StepId, count: int) -> _Incoming:
        return self._incoming.setdefault((epoch, step_id), _Incoming(count))

    async def _acknowledge(self, receipt: Receipt) -> None:
        await self._bus.publish(self._bus.subjects.stage_receipt(self._index - 1), receipt)

    def begin_epoch(self) -> None:
        """The bus is in a new one: pieces of before are void, and whoever waits for them is told so."""
        for key in [key for key in self._incoming if key[0] < self._bus.epoch]:
            incoming = self._incoming.pop(key)
            incoming.over = True
            incoming.changed.set()
        self._memory.forget()  # the sender does not use those of before again

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._pair = None

    # ------------------------------------------------------------ receiving

    async def fetch(self, epoch: Epoch, step: StepInput) -> Tensor:
        """[tokens, hidden_size] on the CPU, with memory of its own.

        Raises EpochOver if the epoch ends meanwhile, ActivationLost if it does not come, BusError if a
        segment is not on this host.
        """
        data = step.hidden
        if data is None:
            raise BusError(f"step {step.plan.step_id} came without activations")
        began = time.perf_counter()
        if data.segment is not None:
            way = Way.SHM
            hidden = empty(data)
            await in_thread_if_large(hidden.nbytes, self._memory.read, data.segment, hidden)
        elif data.chunks:
            way = Way.CHUNKED
            hidden = restore(data, await self._assemble(epoch, step.plan.step_id, data.chunks))
        elif data.tag is not None:
            way = Way.DISTRIBUTED
            hidden = await self._receive_distributed(data, data.tag)
        else:
            way = Way.INLINE
            hidden = restore(data, bytearray(data.data))
        self._metrics.received(way, hidden.nbytes, time.perf_counter() - began)
        return hidden

    async def taken(self, step_id: StepId) -> None:
        """Its activations wait no more: they are being computed with, or were given up."""
        self._taken = (self._bus.epoch, step_id)
        self._incoming.pop(self._taken, None)
        await self._acknowledge(Receipt(step_id, taken=True))

    async def discard(self, data: TensorData) -> None:
        """Nobody will compute with it."""
        if data.tag is not None and self._pair is not None:
            try:
                await self._receive_distributed(data, data.tag)  # or its sender would wait for ever
            except ActivationLost as error:
                log.warning("%s", error)

    async def _assemble(self, epoch: Epoch, step_id: StepId, count: int) -> bytearray:
        incoming = self._incoming_of(epoch, step_id, count)
        while not incoming.assembly.complete:
            incoming.changed.clear()
            try:
                await asyncio.wait_for(incoming.changed.wait(), self._config.transfer_timeout_s)
            except TimeoutError:
                raise ActivationLost(
                    f"step {step_id}: {incoming.assembly.arrived} of {count} pieces of its activations are "
                    f"here, and none has come for {self._config.transfer_timeout_s:g} s "
                    "(stage.transfer_timeout_s)"
                ) from None
            if incoming.over:
                raise EpochOver
        del self._incoming[epoch, step_id]
        return incoming.assembly.content()

    async def _receive_distributed(self, data: TensorData, tag: int) -> Tensor:
        if self._pair is None:
            raise ActivationLost("activations come over torch.distributed, and there is no process group")
        hidden = empty(data)
        await self._in_thread(self._pair.receive, hidden, tag)
        return hidden

    def _in_thread(self, call: Any, *arguments: Any) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)
