"""The engine behind the bus: jobs to the pipelines' schedulers, tokens back, whatever becomes of them."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Any

from services.gateway.dispatcher import Dispatcher
from services.gateway.inquiries import Inquiries
from services.gateway.jobs import OpenJob, OpenJobs
from services.gateway.peers import Gateways
from services.gateway.pipeline_view import PipelineView
from services.gateway.pipelines import GONE_S, News, Pipelines, PipelineState, Server
from services.gateway.routing import Router
from shared.bus import Bus, Delivery, Subscription
from shared.clock import Clock, MonotonicClock
from shared.config import Config
from shared.costmodel import GUESS, CostModel
from shared.errors import GenerationFailed, InvalidRequest, NotReady, RequestCancelled
from shared.ids import JobId
from shared.messages import (
    Explanation,
    FinishReason,
    Hello,
    JobTokens,
    Limits,
    Outstanding,
    PrefixesKept,
    Requests,
    Submit,
    Timeline,
    Timelines,
    TokenBatch,
)
from shared.metrics import Registry

log = logging.getLogger("skipjoin.gateway")

_TOKENS_DEPTH = 4096
"""Waiting token messages; one is at most one iteration of one scheduler."""


class BusEngine:
    """Construct, `await open()`, then run the three loops as those of the service: `receive_tokens()`,
    `watch_schedulers()` and `watch_prefixes()`.

    services: those of a pipeline that are asked for metrics (`scheduler`, `stage0`, ...)
    """

    def __init__(
        self,
        bus: Bus,
        registry: Registry,
        services: Sequence[str],
        config: Config,
        clock: Clock | None = None,
    ) -> None:
        self._bus = bus
        self._inquiries = Inquiries(bus, registry, services)
        self._clock = clock or MonotonicClock()
        self._jobs = OpenJobs(self._clock)
        self._pipelines = Pipelines(config.parallel.replicas, self._clock.now())
        self._gateways = Gateways(bus.instance)
        self._router = Router(config.scheduler.max_batch_size)
        block_size = config.kv.block_size if config.kv.prefix_capacity else None
        self._dispatcher = Dispatcher(
            bus, self._jobs, self._pipelines, self._router, registry, self._clock, block_size
        )
        self._tokens: Subscription | None = None
        self._hellos: Subscription | None = None
        self._kept: Subscription | None = None
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Subscribe; from here on no token is missed."""
        subjects = self._bus.subjects
        self._tokens = await self._bus.subscribe(subjects.tokens(self._bus.instance), depth=_TOKENS_DEPTH)
        self._hellos = await self._bus.subscribe(subjects.schedulers)
        self._kept = await self._bus.subscribe(subjects.kept)

    @property
    def instance(self) -> str:
        return self._bus.instance

    @property
    def limits(self) -> Limits | None:
        return self._pipelines.limits

    @property
    def cost(self) -> CostModel:
        return self._pipelines.cost

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def pipelines(self) -> list[PipelineState]:
        return self._pipelines.states(self._clock.now())

    @property
    def ready(self) -> tuple[bool, str]:
        if self._draining:
            return False, "the gateway is shutting down"
        failure = self._pipelines.not_ready(self._clock.now())
        return not failure, failure

    async def generate(self, submit: Submit, trace: str | None) -> AsyncGenerator[JobTokens]:
        """See `Engine.generate`."""
        ready, reason = self.ready
        if not ready:
            raise NotReady(reason)
        job = self._jobs.open(submit, trace)
        self._idle.clear()
        try:
            await self._dispatcher.place(job)
            yield JobTokens(submit.job_id, job.taken, [])
            finish = None
            while finish is None:
                item = await job.next()
                finish = item.finish
                if finish is FinishReason.ABORT:  # by another gateway: we close what we abort ourselves
                    raise RequestCancelled(item.error or "it was cancelled")
                if finish is FinishReason.REFUSED:
                    field = submit.grammar.field if submit.grammar else None
                    raise InvalidRequest(
                        f"{field}: the answer cannot go on as the schema asks: {item.error}",
                        param=field,
                        code="schema_too_complex",
                    )
                if finish is FinishReason.ERROR:
                    raise GenerationFailed(item.error or "the job failed")
                yield item
        finally:
            self._close(job)

    def _close(self, job: OpenJob) -> None:
        if job.finish in (FinishReason.STOP, FinishReason.LENGTH):
            self._router.answered(job.job_id, len(job.output))
        else:
            self._router.withdrawn(job.job_id)
        if self._jobs.close(job.job_id):
            # A task of its own: this may run while the request is being cancelled.
            self._spawn(self._dispatcher.abort(job.job_id, job.pipeline))
        if not len(self._jobs):
            self._idle.set()

    async def receive_tokens(self) -> None:
        """Loop: hand arriving tokens to their jobs."""
        assert self._tokens is not None, "open() first"
        async for delivery in self._tokens:
            batch = delivery.body
            if isinstance(batch, TokenBatch) and not self._pipelines.superseded(
                Server(delivery.epoch, delivery.source, batch.pipeline)
            ):
                self._receive(batch, delivery.lost > 0)

    def _receive(self, batch: TokenBatch, lost: bool) -> None:
        stale = self._jobs.deliver(batch)
        for item in batch.items:
            job = self._jobs.get(item.job_id)
            if job is not None and job.pipeline == batch.pipeline:
                self._router.progressed(item.job_id, len(job.output) - job.base)
        for job_id in self._jobs.strays(batch):
            self._spawn(self._dispatcher.abort(job_id, batch.pipeline))
        if lost:
            self._jobs.message_lost(batch)
        if stale or lost:
            self._place_stale()

    async def watch_schedulers(self) -> None:
        """Loop: notice that a scheduler is ready, replaced or gone, and act for the open jobs."""
        assert self._hellos is not None, "open() first"
        while True:
            delivery = await self._hellos.next_within(1.0)
            if delivery is not None:
                self._note_hello(delivery)
            now = self._clock.now()
            for pipeline in self._pipelines.take_gone(now):
                self._router.forget(pipeline)
            serving = self._pipelines.serving(now)
            if serving:
                self._jobs.displace(serving)
                self._place_stale()
            elif self._pipelines.silent_for(now) > GONE_S:
                self._jobs.fail_all(f"the scheduler did not come back within {GONE_S:.0f} s")

    async def watch_prefixes(self) -> None:
        """Loop: note which pipeline holds what, so that what begins alike goes there."""
        assert self._kept is not None, "open() first"
        async for delivery in self._kept:
            if isinstance(delivery.body, PrefixesKept):
                for prefix in delivery.body.prefixes:
                    self._router.kept(delivery.body.pipeline, prefix)

    async def watch_gateways(self, hellos: Subscription) -> None:
        """Loop: note which other gateways there are."""
        async for delivery in hellos:
            if isinstance(delivery.body, Hello):
                self._gateways.hear(delivery.body, self._clock.now())

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, let the open ones finish for up to `seconds`, then fail the rest."""
        self._draining = True
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            self._jobs.fail_all("the gateway is shutting down")
            await self._idle.wait()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def explain(self, job_id: JobId) -> Explanation:
        """See `Engine.explain`."""
        job = self._jobs.get(job_id)
        return await self._inquiries.explain(
            job_id, self._pipelines.members if job is None else [job.pipeline]
        )

    async def requests_elsewhere(self, name: str | None) -> list[Requests]:
        """See `Engine.requests_elsewhere`."""
        return await self._inquiries.requests(self._gateways.others(self._clock.now()), name)

    async def timelines(self, job_ids: Sequence[JobId]) -> list[Timeline]:
        """See `Engine.timelines`."""
        jobs = [self._jobs.get(job_id) for job_id in job_ids]
        known = {job.pipeline for job in jobs if job is not None}
        answers = await self._inquiries.timelines(known or self._pipelines.members, job_ids)
        return [timeline for answer in answers for timeline in answer.timelines]

    async def window(self, seconds: float) -> list[Timelines]:
        """See `Engine.window`."""
        return await self._inquiries.timelines(self._pipelines.members, seconds=seconds)

    async def abort(self, job_id: JobId) -> None:
        """See `Engine.abort`."""
        for pipeline in self._pipelines.members:
            await self._dispatcher.abort(job_id, pipeline)

    async def look(self) -> list[PipelineView]:
        """See `Engine.look`."""
        return await self._inquiries.look(self.pipelines)

    async def metrics(self) -> str:
        return await self._inquiries.metrics(
            self._pipelines.members, self._gateways.others(self._clock.now())
        )

    def _note_hello(self, delivery: Delivery) -> None:
        hello = delivery.body
        if not isinstance(hello, Hello):
            return
        server = Server(delivery.epoch, delivery.source, hello.pipeline)
        news = self._pipelines.hear(hello, server, self._clock.now())
        if news is News.STALE:
            return
        if news is not News.NOTHING:
            self._router.lost(hello.pipeline)
        if news is News.REPLACED:
            self._jobs.scheduler_replaced(server)
            log.info("pipeline %d: scheduler %s, epoch %d", server.pipeline, server.instance, server.epoch)
        others = [each for who, each in hello.outstanding.items() if who != self._bus.instance]
        self._router.report(hello.pipeline, hello.cost or GUESS, _sum(others))

    def _place_stale(self) -> None:
        if not self._dispatcher.busy:
            self._spawn(self._dispatcher.place_stale())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the gateway failed", exc_info=task.exception())


def _sum(parts: Sequence[Outstanding]) -> Outstanding:
    return Outstanding(
        sum(part.jobs for part in parts),
        sum(part.prefill for part in parts),
        sum(part.context for part in parts),
        sum(part.output for part in parts),
    )
