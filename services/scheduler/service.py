"""The scheduler's shell: messages in, plans out, and the fencing epoch of the whole pipeline.

    submit, abort, result, kv_changed, cost_model ──> inbox ──wake──> drive: plan ─> kvcache ─> stage 0

A new epoch begins at start, when a stage or the KV-cache manager was restarted, when that manager finds its
blocks in disorder, and when a step is lost.
Everyone drops messages of older epochs; every unfinished job is recomputed from its tokens.
"""

import asyncio
from functools import partial

import msgspec

from services.scheduler.core import Scheduler
from services.scheduler.observer import JobObserver
from services.scheduler.peers import Peers, Receivers
from services.scheduler.tally import Place
from services.scheduler.utilisation import Utilisation
from services.scheduler.view import view_of
from shared.bus import Delivery
from shared.clock import next_epoch
from shared.config import Config
from shared.costmodel import CostModel
from shared.errors import BusTimeout, ConfigError, NoResponder, SkipjoinError
from shared.ids import Epoch
from shared.messages import (
    HELLO_STALE_S,
    LEAVING,
    LOOK_EVERY_S,
    Abort,
    Accepted,
    AskTimelines,
    Explain,
    Explanation,
    Hello,
    JobsEnded,
    JobTokens,
    KVChanged,
    KVLost,
    Look,
    PlanReply,
    PlanRequest,
    PrefixesKept,
    Refused,
    SchedulerView,
    StaleEpoch,
    StepPassed,
    StepPlan,
    StepResult,
    Submit,
    Timeline,
    Timelines,
    TokenBatch,
)
from shared.metrics import RunningTotal
from shared.momentary import Momentary
from shared.service import Service

PLAN_TIMEOUT_S = 10.0
RECEIVER_LOST_S = 15.0
"""A gateway silent for this long has crashed; a mere reconnect to NATS takes less."""


class Superseded(SkipjoinError):
    """A newer scheduler acts; this one must not go on."""


class SchedulerService(Service):
    pipeline: int
    _core: Scheduler | None = None
    _stopping = False

    def __init__(self, config: Config, pipeline: int = 0) -> None:
        super().__init__(config, "scheduler", pipeline)
        if config.scheduler.policy == "srpt":
            raise ConfigError("scheduler.policy: srpt needs the length of each answer: simulator only")
        stages = [f"stage{index}" for index in range(config.parallel.pipeline_stages)]
        self._peers = Peers(["kvcache", *stages], HELLO_STALE_S)
        self._receivers = Receivers(RECEIVER_LOST_S)
        self._wake = asyncio.Event()
        self._last_progress = self.clock.now()
        self._profiled = False
        self._jobs = self.registry.gauge(
            "skipjoin_jobs", "Unfinished jobs by state and queue.", ["state", "level"]
        )
        self._counted: set[Place] = set()
        self._view = Momentary[SchedulerView](LOOK_EVERY_S)
        self._in_flight = self.registry.gauge("skipjoin_batches_in_flight", "Batches the stages work on.")
        self._iterations = RunningTotal(self.registry.counter("skipjoin_iterations", "Iterations completed."))
        self._epochs = self.registry.counter("skipjoin_epochs", "Epochs begun, by cause.", ["cause"])
        self._batch_size = self.registry.histogram(
            "skipjoin_batch_size", "Jobs in an iteration.", buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256)
        )
        self._iterated = 0
        self._utilisation = Utilisation(config.parallel.pipeline_stages)
        self._active = RunningTotal(
            self.registry.counter(
                "skipjoin_pipeline_active_seconds", "Time during which batches were in flight."
            )
        )
        busy = self.registry.counter(
            "skipjoin_stage_busy_seconds",
            "Of that, time that a stage computed or waited for a copy.",
            ["stage"],
        )
        bubble = self.registry.counter(
            "skipjoin_stage_bubble_seconds", "Of that, time that a stage had nothing to do.", ["stage"]
        )
        stages = range(config.parallel.pipeline_stages)
        self._busy = [RunningTotal(busy.labels(stage)) for stage in stages]
        self._bubble = [RunningTotal(bubble.labels(stage)) for stage in stages]
        self._plan_seconds = self.registry.histogram(
            "skipjoin_schedule_seconds", "From an event to the next step on its way, KV plan included."
        )

    # ------------------------------------------------------------ life

    async def on_start(self) -> None:
        self._observer = JobObserver(self.tracing, self.registry)
        subjects = self.bus.subjects
        inbox = await self.bus.subscribe(subjects.scheduler_all, depth=65536)
        hellos = await self.bus.subscribe(subjects.hello_all, depth=4096)
        gateways = await self.bus.subscribe(subjects.outside.hello("gateway"))

        async def read_inbox() -> None:
            async for delivery in inbox:
                await self._receive(delivery)

        async def read_hellos() -> None:
            async for delivery in hellos:
                if isinstance(delivery.body, Hello):
                    self._hear(delivery.body, delivery.epoch)

        async def read_gateways() -> None:
            async for delivery in gateways:
                if isinstance(delivery.body, Hello):
                    self._receivers.hear(delivery.body, self.clock.now())

        async def drive() -> None:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._drive()
                await self._report_ended()

        self._begin_epoch("start")
        self.supervisor.start("inbox", read_inbox())
        self.supervisor.start("hellos", read_hellos())
        self.supervisor.start("gateways", read_gateways())
        self.supervisor.start("drive", drive())
        self.supervisor.every("watchdog", 1.0, self._watch)

    async def drain(self) -> None:
        """Gateways are told at once, and move its jobs to other pipelines: the stages stop as well."""
        self._stopping = True
        await self.say_hello()

    def hello(self) -> Hello:
        missing = self._peers.missing(self.clock.now())
        core = self._core
        if self._stopping:
            reason = LEAVING
        elif missing or core is None:
            reason = "waiting for " + ", ".join(missing or ["limits"])
        else:
            reason = "" if self._profiled else "waiting for the profiler"
        return Hello(
            self.name,
            self.bus.instance,
            not reason,
            reason,
            None if missing or core is None else self._peers.limits(),
            self.pipeline,
            core.cost if core is not None and self._profiled else None,
            core.outstanding() if core is not None else {},
        )

    def _hear(self, hello: Hello, epoch: Epoch) -> None:
        """Raises Superseded if somebody is in a newer epoch: only another scheduler can have begun it.

        A plan request would find that out too, but none is made while a step is awaited that nobody computes
        any more, and the timeout of that step would begin yet another epoch.
        """
        if epoch > self.bus.epoch:
            raise Superseded(f"epoch {self.bus.epoch} was superseded by {epoch}")
        now = self.clock.now()
        self._receivers.hear(hello, now)
        complete_before = not self._peers.missing(now)
        if self._peers.hear(hello, now):
            self.log.warning("%s was restarted", hello.service)
            self._begin_epoch("restarted peer")
        if complete_before or self._peers.missing(now):
            return
        limits = self._peers.limits()
        if self._core is None and limits is not None:
            self._core = Scheduler(self.config, self._observer, limits)
        self._wake.set()

    def _begin_epoch(self, cause: str) -> None:
        self.bus.epoch = next_epoch(self.bus.epoch)
        self._epochs.labels(cause).inc()
        self.log.info("epoch %d begins: %s", self.bus.epoch, cause)
        if self._core is not None:
            self._core.lose_kv(self.clock.now())
            self._utilisation.observe(0, self.clock.now())
        self._progress()
        self._wake.set()

    def _progress(self) -> None:
        self._last_progress = self.clock.now()

    async def _watch(self) -> None:
        """End what nobody waits for; re-drive everything when no step has come back for too long."""
        now = self.clock.now()
        for receiver in self._receivers.take_lost(now):
            self.log.warning("receiver %s is gone, its jobs end", receiver)
            if self._core is not None:
                self._core.abort_receiver(receiver, now)
                self._wake.set()
        if self._core is None or self._core.unfinished == 0:
            self._progress()
        elif self.clock.now() - self._last_progress > self.config.scheduler.step_timeout_s:
            self.log.error("no step result for %.0f s", self.config.scheduler.step_timeout_s)
            self._begin_epoch("lost step")

    # ------------------------------------------------------------ inbox

    async def _receive(self, delivery: Delivery) -> None:
        match delivery.body:
            case Submit() as submit:
                await self._submit(submit, delivery)
            case Abort() as abort:
                if self._core is not None:
                    news = self._core.abort(abort.job_ids, self.clock.now())
                    news.pop(delivery.source, None)
                    await self._send_tokens(news)
            case Explain(job_id):
                now, unknown = self.clock.now(), Explanation(job_id, found=False)
                known = self._core.explain(job_id, now) if self._core else unknown
                await self.bus.reply(delivery, known)
                return
            case Look():
                if self._core is not None:
                    now, look = self.clock.now(), partial(self._look, self._core)
                    await self.bus.reply(delivery, self._view.get(now, look))
                return
            case StepResult() | StepPassed() | KVChanged() if delivery.epoch != self.bus.epoch:
                self.bus.count("stale_epoch")
            case StepResult() as result:
                await self._complete(result)
            case StepPassed(step_id):
                if self._core is not None:
                    self._core.passed(step_id)
            case KVChanged(moved=moved):
                if self._core is not None:
                    self._core.moved(moved, self.clock.now())
            case AskTimelines() as asked:
                await self.bus.reply(delivery, self._tell(asked))
                return
            case CostModel() as cost:
                if self._core is not None:
                    self._core.set_cost_model(cost)
                    self._profiled = True
            case other:
                self.log.error("unexpected %s from %s", type(other).__name__, delivery.source)
        self._wake.set()

    def _look(self, core: Scheduler) -> SchedulerView:
        busy = self._utilisation.busy
        return view_of(core, self._observer.recent, busy, self._iterated, self.clock.now())

    async def _submit(self, submit: Submit, delivery: Delivery) -> None:
        if self._core is None:
            answer = Refused(submit.job_id, "the model is still loading", retryable=True)
            await self.bus.reply(delivery, answer)
            return
        refused = self._core.submit(submit, delivery.trace, self.clock.now())
        await self.bus.reply(delivery, refused or Accepted(submit.job_id))
        missed = self._core.tokens_from(submit.job_id, len(submit.output))
        if missed is not None:
            await self._send_tokens({submit.reply_to: [missed]})

    async def _complete(self, result: StepResult) -> None:
        assert self._core is not None  # results of this epoch come after its first step
        if result.error is not None:
            self.log.error("step %d failed: %s", result.step_id, result.error)
        now = self.clock.now()
        tokens = self._core.complete(result, now)
        self._utilisation.observe(self._core.in_flight, now)
        self._utilisation.worked(result.seconds, result.waited)
        self._iterated += 1
        self._progress()
        await self._send_tokens(tokens)

    async def _send_tokens(self, by_receiver: dict[str, list[JobTokens]]) -> None:
        for receiver, items in by_receiver.items():
            await self.bus.publish(self.bus.subjects.tokens(receiver), TokenBatch(items, self.pipeline))

    # ------------------------------------------------------------ timelines

    async def _report_ended(self) -> None:
        """What became of jobs, to the gateways that they came from."""
        for receiver, timelines in self._observer.report_ended(self.clock.now()).items():
            ended = JobsEnded([self._of_this_pipeline(timeline) for timeline in timelines])
            await self.bus.publish(self.bus.subjects.jobs_ended(receiver), ended)

    def _tell(self, asked: AskTimelines) -> Timelines:
        if self._core is None:
            return Timelines([], pipeline=self.pipeline)
        now = self.clock.now()
        timelines, left_out = self._core.timelines(asked.job_ids, now)
        samples = self._core.history.samples(now, asked.seconds) if asked.seconds > 0 else []
        told = [self._of_this_pipeline(timeline) for timeline in timelines]
        return Timelines(told, samples, left_out, self.pipeline)

    def _of_this_pipeline(self, timeline: Timeline) -> Timeline:
        return msgspec.structs.replace(timeline, pipeline=self.pipeline)

    # ------------------------------------------------------------ planning

    async def _drive(self) -> None:
        """Plan and send until the pipeline is full or nothing more can run now."""
        while self._core is not None and not self._peers.missing(self.clock.now()):
            epoch, started = self.bus.epoch, self.clock.now()
            request = self._core.plan_request(started)
            if request is None:
                return
            reply = await self._ask_kvcache(request)
            if self.bus.epoch != epoch or reply is None:
                return  # what was planned belongs to the past; beginning an epoch has set the wake-up
            step = self._core.dispatch(reply, self.clock.now())
            self._utilisation.observe(self._core.in_flight, self.clock.now())
            if step is not None:
                await self._send_step(step)
                self._plan_seconds.observe(self.clock.now() - started)
            await self._tell_gateways(request)
            if not reply.calls_for_another:
                return  # whatever changes that wakes us up

    async def _tell_gateways(self, request: PlanRequest) -> None:
        """Which requests had better come to this pipeline."""
        if request.ended:
            kept = PrefixesKept(self.pipeline, [ended.prefix for ended in request.ended])
            await self.bus.publish(self.bus.subjects.kept, kept)

    async def _ask_kvcache(self, request: PlanRequest) -> PlanReply | None:
        epoch = self.bus.epoch
        try:
            answer = await self.bus.request(self.bus.subjects.kv_plan, request, timeout=PLAN_TIMEOUT_S)
        except (NoResponder, BusTimeout) as error:
            self.log.error("no KV plan: %s", error)
            self._peers.forget("kvcache")
            if self.bus.epoch == epoch:
                self._begin_epoch("no KV plan")  # it may or may not have applied the request
            return None
        match answer.body:
            case PlanReply() as reply:
                return reply
            case StaleEpoch(newest):
                if self.bus.epoch == epoch:
                    raise Superseded(f"epoch {epoch} was superseded by {newest}")
                return None
            case KVLost(reason):
                self.log.error("the KV-cache manager starts over: %s", reason)
                if self.bus.epoch == epoch:
                    self._begin_epoch("lost KV")
                return None
            case other:
                raise SkipjoinError(f"the KV-cache manager answered a plan with {type(other).__name__}")

    async def _send_step(self, step: StepPlan) -> None:
        if step.jobs:
            self._batch_size.observe(len(step.jobs))
        self._progress()
        if self._core is not None:
            last = self.bus.subjects.stage_step(self.config.parallel.pipeline_stages - 1)
            for definition in self._core.grammars.take_definitions():
                await self.bus.publish(last, definition)
        await self.bus.publish(self.bus.subjects.stage_step(0), step)

    def update_metrics(self) -> None:
        if self._core is None:
            return
        self._in_flight.set(self._core.in_flight)
        self._iterations.follow(self._iterated)
        self._active.follow(self._utilisation.active)
        for stage, (busy, bubble) in enumerate(
            zip(self._utilisation.busy, self._utilisation.bubble, strict=True)
        ):
            self._busy[stage].follow(busy)
            self._bubble[stage].follow(bubble)
        counts = self._core.count_jobs()
        self._counted |= counts.keys()  # what has been shown goes to zero, instead of away
        for state, level in self._counted:
            self._jobs.labels(state, f"Q{level + 1}").set(counts.get((state, level), 0))
