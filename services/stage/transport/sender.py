"""The way to the next stage: what both share is found out when they meet, then each activation goes its way.

this stage                                           next stage
Meet(segment, store) ───────────────────────────────> reads the segment, joins the process group
                     <─────────────────────────────── Met(content, joined)
credit, StepInput(plan, descriptor) ────────────────>
  chunked: Chunk 0..n, a window at a time ──────────> Receipt(chunks)
                     <─────────────────────────────── Receipt(taken), once it computes the step
"""

import asyncio
import itertools
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import torch
from torch import Tensor

from services.stage.transport.choice import Hop, Way, ways
from services.stage.transport.chunks import count_chunks, cut
from services.stage.transport.credits import Credits, EpochOver, Window
from services.stage.transport.pair import Pair, Store, address_towards, host_of
from services.stage.transport.shared_memory import MEETING_BYTES, SharedMemory, in_thread_if_large
from services.stage.transport.telemetry import HopMetrics
from services.stage.transport.tensors import content_of, describe
from shared.bus import Bus
from shared.config import Config
from shared.errors import ActivationLost, BusError, BusTimeout, ConfigError, NoResponder, PayloadTooLarge
from shared.ids import Epoch, StepId
from shared.messages import Meet, Met, Receipt, StepInput, TensorData

log = logging.getLogger("skipjoin.stage")

_ENVELOPE_BYTES = 1024
"""Room for all of a Chunk message but its data."""


class Sender:
    """Of stage `index`, which is not the last one. `loops` must run.

    ready: the next stage was met
    """

    def __init__(
        self, config: Config, index: int, bus: Bus, memory: SharedMemory, metrics: HopMetrics
    ) -> None:
        """Raises ConfigError if shared memory is demanded and is not there."""
        self._config = config.stage
        self._next = index + 1
        self._index = index
        self._bus = bus
        self._memory = memory
        self._metrics = metrics
        self._nats_host = host_of(config.nats.url or "")
        self._credits = Credits(self._config.unacknowledged, self._config.unacknowledged_bytes)
        self._segments: OrderedDict[StepId, str] = OrderedDict()
        self._window: Window | None = None
        self._tags = itertools.count()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="send")
        self._peer = ""
        self._changed = asyncio.Event()
        self._shares_memory = False
        self._pair: Pair | None = None
        if self._config.transport == "shm" and not memory.available:
            raise ConfigError(
                f"stage.transport: shm needs {memory.folder}, which is not writable here; set it to auto"
            )

    @property
    def ready(self) -> bool:
        return bool(self._peer)

    async def loops(self) -> dict[str, Coroutine[Any, Any, None]]:
        """Subscribed already; by name, for the supervisor."""
        subjects = self._bus.subjects
        receipts = await self._bus.subscribe(subjects.stage_receipt(self._index))
        hellos = await self._bus.subscribe(subjects.hello(f"stage{self._next}"))

        async def read_receipts() -> None:
            async for delivery in receipts:
                if isinstance(delivery.body, Receipt) and delivery.epoch == self._bus.epoch:
                    self._note(delivery.body)

        async def meet() -> None:
            async for delivery in hellos:
                if delivery.source != self._peer:
                    await self._meet(delivery.source)

        return {"receipts": read_receipts(), "next stage": meet()}

    def _note(self, receipt: Receipt) -> None:
        window = self._window
        if receipt.taken:
            self._credits.release(receipt.step_id)
            self._release_segments(receipt.step_id)
        if window is not None and window.step_id == receipt.step_id:
            if receipt.taken:
                window.close()  # given up, if it is still open
            else:
                window.arrived(receipt.chunks)

    def begin_epoch(self) -> None:
        """Steps of before are void; whoever waits to send one is told so."""
        self._credits.reset()
        for segment in self._segments.values():
            self._memory.discard(segment)
        self._segments.clear()
        self._changed.set()
        if self._window is not None:
            self._window.close()

    def _release_segments(self, step_id: StepId) -> None:
        """The next stage has read those of this step and of all before it."""
        while self._segments and next(iter(self._segments)) <= step_id:
            _, segment = self._segments.popitem(last=False)
            self._memory.release(segment)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._pair = None

    # ------------------------------------------------------------ meeting the next stage

    async def _meet(self, instance: str) -> None:
        """Another process is the next stage: find out what it shares with this one.

        Raises ConfigError if the configured transport needs more than that.
        """
        self._peer, self._shares_memory, self._pair = "", False, None
        content = secrets.token_bytes(MEETING_BYTES)
        segment, joining = self._offer(content), None
        try:
            store = await self._open_store()
            joining = None if store is None else self._in_thread(store.pair)
            answer = await self._bus.request(
                self._bus.subjects.stage_meet(self._next),
                Meet(segment, "" if store is None else store.address),
                timeout=2 * self._config.transfer_timeout_s,
            )
            if joining is not None:
                self._pair = await joining
        except (NoResponder, BusTimeout, ActivationLost, OSError) as error:
            log.warning("stage %d was not met, its next hello is a new chance: %s", self._next, error)
            return
        finally:
            if joining is not None:
                joining.cancel()  # if it still waits: nobody asks for its outcome any more
            if segment:
                self._memory.discard(segment)  # another one may be about to read it
        if answer.source != instance or not isinstance(answer.body, Met):
            return  # one that is about to stop has answered in its place
        self._shares_memory = answer.body.content == content
        if self._config.transport == "shm" and not self._shares_memory:
            raise ConfigError(
                f"stage.transport: shm, but stage {self._next} does not see {self._memory.folder} of stage "
                f"{self._index}: they are on different hosts or in different containers; set it to auto"
            )
        self._peer = instance
        self._changed.set()
        shared = "shared memory" if self._shares_memory else "no shared memory"
        log.info("stage %d met stage %d: %s", self._index, self._next, shared)

    def _offer(self, content: bytes) -> str:
        """Name of a segment with this content, "" if there can be none."""
        if not self._memory.available:
            return ""
        try:
            return self._memory.write(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        except OSError as error:
            log.warning("%s is of no use: %s", self._memory.folder, error)
            return ""

    async def _open_store(self) -> Store | None:
        if not self._config.wants_process_group:
            return None
        host = address_towards(self._nats_host)
        return await asyncio.to_thread(Store, host, self._config.transfer_timeout_s)

    def _in_thread(self, call: Any, *arguments: Any) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)

    # ------------------------------------------------------------ sending

    async def send(self, epoch: Epoch, step: StepInput, hidden: Tensor) -> None:
        """Give the activations of `step`, which has none yet, to the next stage.

        Raises EpochOver if `epoch` ends before they are gone; ActivationLost; BusError if none of the ways
        that are left takes them, PayloadTooLarge among them.
        """
        began = time.perf_counter()
        step_id, size = step.plan.step_id, hidden.nbytes
        await self._credits.take(step_id, size)
        try:
            await self._until_met(epoch)
            ready = time.perf_counter()
            self._metrics.blocked(ready - began)
            hop = Hop(self._shares_memory, self._pair is not None, self._bus.max_payload)
            way = await self._send_by(ways(self._config, size, hop), epoch, step, hidden)
        except BusError:
            self._credits.give_back(step_id)
            raise
        self._metrics.sent(way, size, time.perf_counter() - ready)

    async def _until_met(self, epoch: Epoch) -> None:
        """The next stage was replaced a moment ago, or its process group broke: its next hello mends that."""
        while not self.ready:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), self._config.transfer_timeout_s)
            except TimeoutError:
                raise ActivationLost(
                    f"stage {self._next} was not met within {self._config.transfer_timeout_s:g} s "
                    "(stage.transfer_timeout_s)"
                ) from None
            if epoch != self._bus.epoch:
                raise EpochOver

    async def _send_by(self, ways: list[Way], epoch: Epoch, step: StepInput, hidden: Tensor) -> Way:
        """By the first of `ways` that has room; returns it."""
        for way in ways:
            last = way is ways[-1]
            try:
                match way:
                    case Way.INLINE:
                        data = content_of(hidden).tobytes()
                        await self._describe(epoch, step, hidden, data=data)
                    case Way.SHM:
                        await self._send_segment(epoch, step, hidden)
                    case Way.CHUNKED:
                        await self._send_chunks(epoch, step, hidden)
                    case Way.DISTRIBUTED:
                        await self._send_distributed(epoch, step, hidden)
                return way
            except PayloadTooLarge:
                if last:
                    raise
            except OSError as error:
                if last:
                    raise BusError(
                        f"{hidden.nbytes} bytes of activations do not go into {self._memory.folder} "
                        f"({error}): enlarge it (docker: --shm-size) or set stage.transport to auto"
                    ) from error
                log.warning("%s refuses %d bytes (%s)", self._memory.folder, hidden.nbytes, error)
        raise AssertionError("there is always a way")

    async def _describe(self, epoch: Epoch, step: StepInput, hidden: Tensor, **how: Any) -> None:
        """The step with its plan and how its activations come."""
        if epoch != self._bus.epoch:
            raise EpochOver
        data: TensorData = msgspec.structs.replace(describe(hidden), **how)
        await self._bus.publish(
            self._bus.subjects.stage_step(self._next), msgspec.structs.replace(step, hidden=data)
        )

    async def _send_segment(self, epoch: Epoch, step: StepInput, hidden: Tensor) -> None:
        content = hidden.contiguous()
        segment = await in_thread_if_large(content.nbytes, self._memory.write, content)
        self._segments[step.plan.step_id] = segment
        try:
            await self._describe(epoch, step, hidden, segment=segment)
        except (EpochOver, BusError):
            self._segments.pop(step.plan.step_id, None)
            self._memory.discard(segment)
            raise

    async def _send_chunks(self, epoch: Epoch, step: StepInput, hidden: Tensor) -> None:
        step_id = step.plan.step_id
        chunk_bytes = min(self._config.chunk_bytes, self._bus.max_payload - _ENVELOPE_BYTES)
        content = await asyncio.to_thread(content_of, hidden)
        await self._describe(epoch, step, hidden, chunks=count_chunks(len(content), chunk_bytes))
        window = self._window = Window(step_id, self._config.window_chunks)
        for chunk in cut(step_id, content, chunk_bytes):
            await window.take(self._config.transfer_timeout_s)
            if epoch != self._bus.epoch:
                raise EpochOver
            await self._bus.publish(self._bus.subjects.stage_chunk(self._next), chunk)

    async def _send_distributed(self, epoch: Epoch, step: StepInput, hidden: Tensor) -> None:
        if self._pair is None:
            raise ActivationLost("stage.transport: distributed, but there is no process group any more")
        tag = next(self._tags)
        await self._describe(epoch, step, hidden, tag=tag)
        content = hidden.cpu().contiguous()
        try:
            await self._in_thread(self._pair.send, content, tag)
        except ActivationLost:
            self._peer = ""  # gloo has closed the pair: meet again
            raise
