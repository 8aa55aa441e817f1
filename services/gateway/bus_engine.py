"""The engine behind the bus: submits to the scheduler, receives tokens, survives a new scheduler."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Any

from services.gateway.collect import render
from services.gateway.jobs import OpenJobs, Server
from shared.bus import Bus, Delivery, Subscription
from shared.clock import Clock, MonotonicClock
from shared.costmodel import GUESS, CostModel
from shared.errors import (
    BusError,
    GenerationFailed,
    InvalidRequest,
    NoResponder,
    NotReady,
    PayloadTooLarge,
    RequestCancelled,
)
from shared.ids import Epoch, JobId
from shared.messages import (
    Abort,
    Accepted,
    CollectMetrics,
    Explain,
    Explanation,
    FinishReason,
    Hello,
    JobTokens,
    Limits,
    MetricFamily,
    Metrics,
    Refused,
    Submit,
    TokenBatch,
)
from shared.metrics import Registry

log = logging.getLogger("skipjoin.gateway")

_SUBMIT_TIMEOUT_S = 5.0
_METRICS_TIMEOUT_S = 1.0
_EXPLAIN_TIMEOUT_S = 2.0
_SILENCE_S = 5.0
"""The scheduler says Hello every second; after this long without one it counts as lost."""
_GIVE_UP_S = 60.0
"""Streams wait this long for a scheduler to come back, then they fail."""
_TOKENS_DEPTH = 4096
"""Waiting token messages; one is at most one iteration of the scheduler."""


class BusEngine:
    """Construct, `await open()`, then run the three loops as those of the service: `receive_tokens()`,
    `watch_scheduler()` and `watch_costs()`.

    services: those asked for metrics (`scheduler`, `stage0`, ...)
    """

    def __init__(
        self, bus: Bus, registry: Registry, services: Sequence[str], clock: Clock | None = None
    ) -> None:
        self._bus = bus
        self._registry = registry
        self._services = list(services)
        self._clock = clock or MonotonicClock()
        self._jobs = OpenJobs(self._clock)
        self._tokens: Subscription | None = None
        self._hellos: Subscription | None = None
        self._costs: Subscription | None = None
        self.cost: CostModel = GUESS
        self._scheduler: Server | None = None
        self._hello: Hello | None = None
        self._heard = self._clock.now()
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._resubmitting = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._resubmitted = registry.counter(
            "skipjoin_resubmitted_jobs", "Jobs handed to a scheduler again, with their tokens so far."
        )

    async def open(self) -> None:
        """Subscribe; from here on no token is missed."""
        subjects = self._bus.subjects
        self._tokens = await self._bus.subscribe(subjects.tokens(self._bus.instance), depth=_TOKENS_DEPTH)
        self._hellos = await self._bus.subscribe(subjects.hello("scheduler"))
        self._costs = await self._bus.subscribe(subjects.cost_model)

    @property
    def instance(self) -> str:
        return self._bus.instance

    @property
    def limits(self) -> Limits | None:
        return self._hello.limits if self._hello else None

    @property
    def ready(self) -> tuple[bool, str]:
        if self._draining:
            return False, "the gateway is shutting down"
        if self._hello is None:
            return False, "the scheduler has not started yet"
        if self._clock.now() - self._heard > _SILENCE_S:
            return False, f"no sign of life from the scheduler for more than {_SILENCE_S:.0f} s"
        if not self._hello.ready or self._hello.limits is None:
            return False, self._hello.detail or "the scheduler is loading"
        return True, ""

    async def generate(self, submit: Submit, trace: str | None) -> AsyncGenerator[JobTokens]:
        """See `Engine.generate`."""
        ready, reason = self.ready
        if not ready:
            raise NotReady(reason)
        job = self._jobs.open(submit, trace)
        self._idle.clear()
        try:
            await self._submit(submit, trace)
            yield JobTokens(submit.job_id, job.taken, [])
            finish = None
            while finish is None:
                item = await job.next()
                finish = item.finish
                if finish is FinishReason.ABORT:  # by another gateway: we close what we abort ourselves
                    raise RequestCancelled(item.error or "it was cancelled")
                if finish is FinishReason.ERROR:
                    raise GenerationFailed(item.error or "the job failed")
                yield item
        finally:
            if self._jobs.close(submit.job_id):
                # A task of its own: this block may run while the request is being cancelled.
                self._spawn(self._abort(submit.job_id))
            if not len(self._jobs):
                self._idle.set()

    async def receive_tokens(self) -> None:
        """Loop: hand arriving tokens to their jobs."""
        assert self._tokens is not None, "open() first"
        async for delivery in self._tokens:
            if self._superseded(delivery):
                continue
            if isinstance(delivery.body, TokenBatch):
                stale = self._jobs.deliver(delivery.body)
                if delivery.lost:
                    self._jobs.message_lost(delivery.body)
                if (stale or delivery.lost) and not self._resubmitting.locked():
                    self._spawn(self._resubmit())

    async def watch_scheduler(self) -> None:
        """Loop: notice that the scheduler is ready, replaced or gone, and act for the open jobs."""
        assert self._hellos is not None, "open() first"
        while True:
            delivery = await self._hellos.next_within(1.0)
            if delivery is not None:
                self._note_hello(delivery)
            if self._clock.now() - self._heard > _GIVE_UP_S:
                self._jobs.fail_all(f"the scheduler did not come back within {_GIVE_UP_S:.0f} s")
            elif self.ready[0] or self._draining:
                await self._resubmit()

    async def watch_costs(self) -> None:
        """Loop: read what the profiler tells the scheduler."""
        assert self._costs is not None, "open() first"
        async for delivery in self._costs:
            if isinstance(delivery.body, CostModel):
                self.cost = delivery.body

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
        try:
            answer = await self._bus.request(
                self._bus.subjects.explain, Explain(job_id), timeout=_EXPLAIN_TIMEOUT_S
            )
        except BusError as error:
            raise NotReady(f"the scheduler did not answer ({error})") from None
        if not isinstance(answer.body, Explanation):
            raise NotReady(f"the scheduler answered {type(answer.body).__name__}")
        return answer.body

    async def abort(self, job_id: JobId) -> None:
        """See `Engine.abort`."""
        await self._bus.publish(self._bus.subjects.abort, Abort([job_id]))

    async def metrics(self) -> str:
        answers = await asyncio.gather(*(self._collect(service) for service in self._services))
        return render(self._registry.collector, dict(zip(self._services, answers, strict=True)))

    def _note_hello(self, delivery: Delivery) -> None:
        hello = delivery.body
        if not isinstance(hello, Hello) or self._superseded(delivery):
            return
        self._hello, self._heard = hello, self._clock.now()
        known, self._scheduler = self._scheduler, Server(delivery.epoch, delivery.source)
        self._bus.epoch = Epoch(max(self._bus.epoch, delivery.epoch))
        if known is None or known.instance != delivery.source:
            self._jobs.scheduler_replaced(self._scheduler)
            log.info("scheduler %s, epoch %d", delivery.source, delivery.epoch)

    def _superseded(self, delivery: Delivery) -> bool:
        """From an older scheduler than the one we know. An older epoch of the same one is no reason to drop
        what it said: it keeps its jobs and their tokens when it begins a new epoch.
        """
        known = self._scheduler
        return known is not None and known.instance != delivery.source and delivery.epoch < known.epoch

    async def _submit(self, submit: Submit, trace: str | None) -> None:
        """Raises InvalidRequest or NotReady."""
        subject = self._bus.subjects.submit
        try:
            answer = await self._bus.request(subject, submit, timeout=_SUBMIT_TIMEOUT_S, trace=trace)
        except PayloadTooLarge as error:
            self._jobs.refuse(submit.job_id, str(error))
            raise InvalidRequest(str(error), code="request_too_large", status=413) from None
        except NoResponder:
            self._not_taken(submit)
            raise NotReady("the scheduler is not reachable") from None
        except BusError as error:  # perhaps taken all the same: then the caller aborts
            raise NotReady(f"the scheduler did not answer ({error})") from None
        match answer.body:
            case Accepted():
                server = Server(answer.epoch, answer.source)
                if not self._jobs.accepted(submit.job_id, server, self._scheduler):
                    await self._abort(submit.job_id)
            case Refused(retryable=False) as refused:
                self._jobs.refuse(submit.job_id, refused.reason)
                raise InvalidRequest(refused.reason, param=refused.param)
            case Refused() as refused:
                self._not_taken(submit)
                raise NotReady(refused.reason)
            case other:
                raise NotReady(f"the scheduler answered {type(other).__name__}")

    def _not_taken(self, submit: Submit) -> None:
        """A first submission ends here; a resubmission is tried again at the next sign of life."""
        job = self._jobs.get(submit.job_id)
        if job is not None and job.accepted_by is None:
            self._jobs.refuse(submit.job_id, "not taken")

    async def _resubmit(self) -> None:
        async with self._resubmitting:
            for submit in self._jobs.resubmissions():
                job = self._jobs.get(submit.job_id)
                if job is None or job.finish is not None:
                    continue
                try:
                    await self._submit(submit, job.trace)
                except NotReady as error:
                    log.warning("resubmission waits: %s", error)
                    return
                except InvalidRequest as error:
                    log.error("job %d was refused by the new scheduler: %s", submit.job_id, error)
                else:
                    self._resubmitted.inc()

    async def _abort(self, job_id: JobId) -> None:
        try:
            await self._bus.publish(self._bus.subjects.abort, Abort([job_id]))
        except BusError as error:
            log.error("job %d could not be aborted: %s", job_id, error)

    async def _collect(self, service: str) -> list[MetricFamily] | None:
        subject = self._bus.subjects.metrics(service)
        try:
            answer = await self._bus.request(subject, CollectMetrics(), timeout=_METRICS_TIMEOUT_S)
        except BusError:
            return None  # reported as skipjoin_up 0
        return answer.body.families if isinstance(answer.body, Metrics) else None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the gateway failed", exc_info=task.exception())
