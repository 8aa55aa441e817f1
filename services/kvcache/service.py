"""The KV-cache manager's shell: plan requests and transfer acknowledgements from the bus into the core."""

import time

from services.kvcache.accounts import IntegrityError
from services.kvcache.core import KVCache
from shared.bus import Delivery
from shared.config import Config
from shared.ids import TransferId
from shared.messages import (
    LOOK_EVERY_S,
    Direction,
    Directive,
    KVChanged,
    KVLost,
    KVView,
    Look,
    PlanReply,
    PlanRequest,
    StaleEpoch,
    TierView,
    TransferDone,
)
from shared.momentary import Momentary
from shared.service import Service

CHECK_EVERY_S = 10.0
"""The integrity check walks over all blocks: always when nothing is under way, and this often when busy."""


class KVCacheService(Service):
    def __init__(self, config: Config, pipeline: int = 0) -> None:
        super().__init__(config, "kvcache", pipeline)
        self._checked = self.clock.now()
        self._copies = config.parallel.pipeline_stages * config.parallel.tensor_parallel
        self._core = KVCache(config.kv, self._copies)
        self._view = Momentary[KVView](LOOK_EVERY_S)
        self._slowest: dict[TransferId, float] = {}  # of the stages that have acknowledged so far
        self._swapped = {
            direction: self.registry.counter(
                f"skipjoin_swap_{direction}_blocks",
                f"Blocks swapped {direction}, counted once for all stages.",
            )
            for direction in Direction
        }
        self._bytes = self.registry.counter(
            "skipjoin_swap_bytes", "Bytes copied between the tiers, all stages.", ["direction"]
        )
        self._seconds = self.registry.counter(
            "skipjoin_swap_seconds", "Time that copies of these bytes took, one by one.", ["direction"]
        )
        self._dropped = self.registry.counter(
            "skipjoin_kv_dropped_jobs", "Jobs whose KV was given up and is recomputed."
        )
        self._prefix_hits = self.registry.counter(
            "skipjoin_prefix_hit_tokens", "Prompt tokens not computed, as their KV was kept of ended jobs."
        )
        self._prefix_blocks = self.registry.gauge(
            "skipjoin_prefix_cached_blocks", "Host blocks that hold prefixes of ended jobs."
        )
        self._violations = self.registry.counter(
            "skipjoin_kv_integrity_violations", "Times that blocks were found lost, doubled or shared."
        )
        self._occupancy = self.registry.gauge(
            "skipjoin_kv_blocks", "KV blocks by tier and state.", ["tier", "state"]
        )
        self._fragmentation = self.registry.gauge(
            "skipjoin_kv_fragmentation", "Share of the free blocks outside the largest free run.", ["tier"]
        )
        self._group_blocks = self.registry.gauge(
            "skipjoin_kv_group_blocks", "Mean neighbouring blocks that one copy can move.", ["tier"]
        )
        self._plan_seconds = self.registry.histogram(
            "skipjoin_kv_plan_seconds",
            "Time of one KV plan.",
            buckets=(1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 0.01),
        )

    async def on_start(self) -> None:
        inbox = await self.bus.subscribe(self.bus.subjects.kvcache_all, depth=4096)

        async def loop() -> None:
            async for delivery in inbox:
                await self._receive(delivery)

        self.supervisor.start("inbox", loop())

    async def _receive(self, delivery: Delivery) -> None:
        match delivery.body:
            case PlanRequest() as request:
                await self._plan(request, delivery)
            case Look():
                await self.bus.reply(delivery, self._view.get(self.clock.now(), self._look))
            case TransferDone() as message if delivery.epoch == self.bus.epoch:
                await self._transferred(message)
            case TransferDone():
                self.bus.count("stale_epoch")
            case other:
                self.log.error("unexpected %s from %s", type(other).__name__, delivery.source)

    def _look(self) -> KVView:
        """It goes over all jobs that hold blocks."""
        tiers = (("device", self._core.device), ("host", self._core.host))
        states = self._core.occupancy()
        return KVView(
            [
                TierView(
                    name, pool.total, states[name]["held"], states[name]["moving"], states[name]["cached"]
                )
                for name, pool in tiers
            ]
        )

    async def _plan(self, request: PlanRequest, delivery: Delivery) -> None:
        if delivery.epoch < self.bus.epoch:
            self.bus.count("stale_epoch")
            await self.bus.reply(delivery, StaleEpoch(self.bus.epoch))
            return
        if delivery.epoch > self.bus.epoch:
            self._begin_epoch(delivery)
        try:
            if self.clock.now() - self._checked >= CHECK_EVERY_S:
                self._check_integrity()
            started = time.perf_counter()
            reply = self._core.plan(request)
            seconds = time.perf_counter() - started
            if not request.candidates and self._core.idle:
                self._check_integrity()
        except IntegrityError as error:
            await self._start_over(error, delivery)
            return
        self._plan_seconds.observe(seconds)
        self._dropped.inc(len(reply.dropped))
        self._prefix_hits.inc(sum(grant.cached for grant in reply.granted))
        await self.bus.reply(delivery, reply)
        self._report_placed(request, reply, seconds)

    def _begin_epoch(self, delivery: Delivery) -> None:
        """Whatever was held or moving belongs to steps that nobody waits for any more."""
        self.log.info("epoch %d begins", delivery.epoch)
        self.bus.epoch = delivery.epoch
        self._forget()

    def _forget(self) -> None:
        self._core = KVCache(self.config.kv, self._copies)
        self._slowest.clear()

    async def _transferred(self, message: TransferDone) -> None:
        moved: list[TransferId] = []
        for done in message.done:
            seconds = max(done.seconds, self._slowest.get(done.transfer_id, 0.0))
            self._slowest[done.transfer_id] = seconds
            trace = self._core.trace_of_transfer(done.transfer_id)
            directive = self._core.transfer_done(done.transfer_id, message.stage, message.rank)
            self._bytes.labels(done.direction).inc(done.bytes)
            self._seconds.labels(done.direction).inc(done.seconds)
            if directive is not None:
                moved.append(directive.transfer_id)
                self._report_transfer(directive, trace, self._slowest.pop(done.transfer_id))
        if moved:
            event = KVChanged(self._core.device.free, moved)
            await self.bus.publish(self.bus.subjects.kv_changed, event)

    def _report_transfer(self, directive: Directive, trace: str | None, seconds: float) -> None:
        direction = directive.direction
        self._swapped[direction].inc(directive.blocks)
        if trace is not None:
            self.tracing.past(f"swap_{direction}", trace, seconds, time.time_ns(), blocks=directive.blocks)

    def _report_placed(self, request: PlanRequest, reply: PlanReply, seconds: float) -> None:
        """A span for each job that got its first blocks."""
        if not self.tracing.enabled:
            return
        placed = {grant.job_id: len(grant.table) // 4 for grant in reply.granted}
        for candidate in request.candidates:
            if candidate.trace is not None and candidate.job_id in placed:
                blocks = placed[candidate.job_id]
                self.tracing.past("allocate", candidate.trace, seconds, time.time_ns(), blocks=blocks)

    def _check_integrity(self) -> None:
        """Raises IntegrityError."""
        self._checked = self.clock.now()
        self._core.check()

    async def _start_over(self, error: IntegrityError, delivery: Delivery) -> None:
        """Nothing that the core says can be trusted: the scheduler recomputes every job in a new epoch."""
        self._violations.inc()
        self.log.critical("KV blocks are in disorder, all jobs are recomputed: %s", error)
        self._forget()
        await self.bus.reply(delivery, KVLost(str(error)))

    def update_metrics(self) -> None:
        for tier, states in self._core.occupancy().items():
            for state, count in states.items():
                self._occupancy.labels(tier, state).set(count)
        self._prefix_blocks.set(self._core.cached_blocks)
        for tier, pool in (("device", self._core.device), ("host", self._core.host)):
            self._fragmentation.labels(tier).set(pool.fragmentation)
            self._group_blocks.labels(tier).set(pool.group_blocks)
