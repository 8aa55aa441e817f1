"""A stage's shell: plans and activations in, activations or tokens out, copies beside the computation.

    inbox ──(epoch fence, copies start)──> arrivals ──(activations whole)──> steps ──> compute thread
      └──directives, at once──> next stage                                                 │
    copy threads ──> transfers ──> KV-cache manager       outbox ──> next stage, or scheduler + profiler

Copies start when their plan arrives, also while an earlier step computes: the KV-cache manager never moves
blocks that a step in flight uses. Only at a new epoch must the old step be over first. The compute thread
begins the next step while the outbox still sends the one before.

With tensor parallelism this is rank 0, which speaks for all ranks of the stage: see `gang`.
"""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from services.stage import checkpoint
from services.stage.gang import Gang, RankProcesses
from services.stage.runner import StageRunner, StepOutput
from services.stage.transport import EpochOver, HopMetrics, Receiver, Sender, SharedMemory
from shared.bus import Delivery, Subscription
from shared.config import Config
from shared.errors import CopyFailed, RankLost
from shared.ids import Epoch, TransferId
from shared.messages import (
    DefineGrammar,
    Hello,
    Limits,
    StepInput,
    StepPassed,
    StepPlan,
    StepResult,
    StepTiming,
    TransferDone,
    Transferred,
)
from shared.service import Service

QUEUE_DEPTH = 1024
"""Steps waiting to be computed; the scheduler keeps a handful in flight."""


class StageService(Service):
    """processes: starts the other ranks, where config.parallel.tensor_parallel asks for some"""

    _runner: StageRunner | Gang

    def __init__(
        self, config: Config, index: int, processes: RankProcesses | None = None, pipeline: int = 0
    ) -> None:
        super().__init__(config, f"stage{index}", pipeline)
        self._processes = processes
        self._index = index
        self._last = index == config.parallel.pipeline_stages - 1
        self._compute_thread = ThreadPoolExecutor(1, thread_name_prefix="compute")
        self._memory = SharedMemory()
        self._sender: Sender | None = None
        self._receiver: Receiver | None = None
        self._arrivals: asyncio.Queue[tuple[Epoch, StepInput]] = asyncio.Queue(QUEUE_DEPTH)
        self._steps: asyncio.Queue[tuple[Epoch, StepInput, Tensor | None]] = asyncio.Queue(QUEUE_DEPTH)
        # One: a step whose activations find no credit holds up the computation, or they would pile up here.
        self._outbox: asyncio.Queue[tuple[Epoch, StepInput, StepOutput]] = asyncio.Queue(1)
        self._transfers: asyncio.Queue[tuple[int, Transferred] | Exception] = asyncio.Queue()
        self._copies_epoch = Epoch(0)
        labels = ["stage"]
        self._step_seconds = self.registry.histogram(
            "skipjoin_stage_step_seconds", "Compute time of one iteration on one stage.", labels
        ).labels(index)
        self._stall_seconds = self.registry.counter(
            "skipjoin_swap_stall_seconds", "Time that iterations were blocked on swap-ins.", labels
        ).labels(index)
        self._tokens = self.registry.counter(
            "skipjoin_computed_tokens", "Tokens computed, by kind of work.", [*labels, "kind"]
        )
        self._failed = self.registry.counter(
            "skipjoin_failed_steps", "Iterations that raised.", labels
        ).labels(index)  # there from the start: a rate sees a counter's first step only if it knew it at 0
        self._ranks = self.registry.gauge(
            "skipjoin_stage_ranks", "Ranks of a stage that compute; 0 when one is lost.", labels
        ).labels(index)

    # ------------------------------------------------------------ life

    async def on_start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._gang_lost: asyncio.Future[None] = self._loop.create_future()
        # Everything that touches the model runs in the one thread, its allocation included.
        self._runner = await self._loop.run_in_executor(self._compute_thread, self._load)
        inbox = await self.bus.subscribe(self.bus.subjects.stage_step(self._index), depth=QUEUE_DEPTH)
        await self._start_transport()
        self.supervisor.start("inbox", self._read_inbox(inbox))
        self.supervisor.start("arrivals", self._fetch_activations())
        self.supervisor.start("compute", self._compute_steps())
        self.supervisor.start("outbox", self._send_outputs())
        self.supervisor.start("transfers", self._report_transfers())
        self.supervisor.start("ranks", self._watch_ranks())

    async def _start_transport(self) -> None:
        metrics = HopMetrics(self.registry, self._index)
        if self._index > 0:
            self._receiver = Receiver(self.config.stage, self._index, self.bus, self._memory, metrics)
        if not self._last:
            self._sender = Sender(self.config, self._index, self.bus, self._memory, metrics)
        for end in filter(None, (self._receiver, self._sender)):
            for name, loop in (await end.loops()).items():
                self.supervisor.start(name, loop)

    def _load(self) -> StageRunner | Gang:
        folder = checkpoint.resolve(self.config.model, self._report_from_thread)
        if self.config.parallel.tensor_parallel == 1:
            return StageRunner(
                self.config,
                self._index,
                folder,
                on_transferred=lambda done: self._put_transfer((0, done)),
                on_copy_error=self._put_copy_error,
                progress=self._report_from_thread,
            )
        if self._processes is None:
            raise ValueError("a stage with several ranks needs something that starts them")
        return Gang(
            self.config,
            self._index,
            folder,
            self._processes,
            on_transferred=lambda rank, done: self._put_transfer((rank, done)),
            on_copy_error=self._put_copy_error,
            on_lost=self._note_lost,
            progress=self._report_from_thread,
        )

    def _report_from_thread(self, text: str, fraction: float | None) -> None:
        asyncio.run_coroutine_threadsafe(self.report(text, fraction), self._loop)

    def _put_transfer(self, item: tuple[int, Transferred] | Exception) -> None:
        self._loop.call_soon_threadsafe(self._transfers.put_nowait, item)

    def _put_copy_error(self, transfer_id: TransferId, error: Exception) -> None:
        self._put_transfer(CopyFailed(f"transfer {transfer_id} failed: {error!r}"))

    def _note_lost(self, error: RankLost) -> None:
        def note() -> None:
            if not self._gang_lost.done():
                self._gang_lost.set_exception(error)

        self._loop.call_soon_threadsafe(note)

    async def _watch_ranks(self) -> None:
        """Raises RankLost when a rank is gone: the whole stage must be replaced."""
        await self._gang_lost

    async def on_stop(self) -> None:
        await self._loop.run_in_executor(self._compute_thread, self._runner.close)
        self._compute_thread.shutdown(wait=True)
        for end in filter(None, (self._receiver, self._sender)):
            end.close()
        self._memory.close()

    def hello(self) -> Hello:
        capacity = self.config.kv.device_blocks * self.config.kv.block_size
        limits = Limits(self._runner.max_model_len, capacity)
        ready = not self._gang_lost.done() and (self._sender is None or self._sender.ready)
        return Hello(self.name, self.bus.instance, ready, self._runner.hardware, limits)

    # ------------------------------------------------------------ steps

    async def _read_inbox(self, inbox: Subscription) -> None:
        async for delivery in inbox:
            message = self._message_of(delivery)
            if message is None:
                continue
            if delivery.epoch > self.bus.epoch:
                await self._begin_epoch(delivery.epoch)
            stale = delivery.epoch < self.bus.epoch
            if stale:
                self.bus.count("stale_epoch")
            if not isinstance(message, DefineGrammar):
                await self._arrived(message, delivery, stale=stale)
            elif not stale:
                self._runner.define(message)

    async def _arrived(self, step: StepInput, delivery: Delivery, *, stale: bool) -> None:
        if not stale:
            self._runner.start_transfers(step.plan.directives)
            if isinstance(delivery.body, StepPlan):
                await self._forward_directives(step.plan)
        if step.plan.jobs:  # stale ones too: their activations may have to be put away
            await self._arrivals.put((delivery.epoch, step))

    def _message_of(self, delivery: Delivery) -> StepInput | DefineGrammar | None:
        match delivery.body:
            case StepPlan() as plan:
                return StepInput(plan)
            case StepInput() | DefineGrammar() as message:
                return message
            case other:
                self.log.error("unexpected %s from %s", type(other).__name__, delivery.source)
                return None

    async def _forward_directives(self, plan: StepPlan) -> None:
        """Ahead of the activations, so that the later stages copy while this one computes."""
        if plan.directives and not self._last:
            ahead = StepPlan(plan.step_id, directives=plan.directives)
            await self.bus.publish(self.bus.subjects.stage_step(self._index + 1), ahead)

    async def _begin_epoch(self, epoch: Epoch) -> None:
        """Steps and transfers of before are void. A step that computes right now writes blocks which the new
        epoch may give to others: it must be over before anything else starts.
        """
        self.log.info("epoch %d begins", epoch)
        self.bus.epoch = epoch
        for end in filter(None, (self._receiver, self._sender)):
            end.begin_epoch()
        await self._steps.join()
        await self._loop.run_in_executor(self._compute_thread, self._runner.reset)
        # Reports of before are on the queue by now: they were put there before `reset` returned.
        while not self._transfers.empty():
            self._transfers.get_nowait()
        self._copies_epoch = epoch

    async def _fetch_activations(self) -> None:
        while True:
            epoch, step = await self._arrivals.get()
            hidden = None
            try:
                if self._receiver is not None:
                    hidden = await self._fetch(self._receiver, epoch, step)
                if epoch == self.bus.epoch:
                    await self._steps.put((epoch, step, hidden))
            except EpochOver:
                pass
            except Exception as error:
                await self._report_failure(epoch, step, error)

    async def _fetch(self, receiver: Receiver, epoch: Epoch, step: StepInput) -> Tensor | None:
        """None if nobody needs them any more. Raises as Receiver.fetch does."""
        if epoch == self.bus.epoch:
            try:
                return await receiver.fetch(epoch, step)
            except EpochOver:
                raise
            except Exception:
                await receiver.taken(step.plan.step_id)  # given up: the sender must not wait
                raise
        if step.hidden is not None:
            await receiver.discard(step.hidden)
        return None

    async def _compute_steps(self) -> None:
        while True:
            epoch, step, hidden = await self._steps.get()
            try:
                if epoch == self.bus.epoch:
                    await self._compute(epoch, step, hidden)
            finally:
                self._steps.task_done()

    async def _compute(self, epoch: Epoch, step: StepInput, hidden: Tensor | None) -> None:
        if self._receiver is not None:
            await self._receiver.taken(step.plan.step_id)
        try:
            output = await self._loop.run_in_executor(self._compute_thread, self._run, step, hidden)
        except RankLost:
            raise  # no fault of the jobs: the stage restarts, and they are recomputed
        except Exception as error:
            await self._report_failure(epoch, step, error)
            if isinstance(error, torch.AcceleratorError):
                raise  # the context is broken, all further steps would fail: this stage must be replaced
            return
        if epoch == self.bus.epoch and self._receiver is None and not self._last:
            await self.bus.publish(self.bus.subjects.step_passed, StepPassed(step.plan.step_id))
        await self._outbox.put((epoch, step, output))

    def _run(self, step: StepInput, hidden: Tensor | None) -> StepOutput:
        """In the compute thread."""
        return self._runner.step(step.plan, hidden)

    async def _report_failure(self, epoch: Epoch, step: StepInput, error: Exception) -> None:
        """The scheduler has the step's jobs computed anew."""
        self._failed.inc()
        self.log.error("step %d failed", step.plan.step_id, exc_info=error)
        if epoch == self.bus.epoch:
            text = f"stage {self._index}: {type(error).__name__}: {error}"
            result = StepResult(step.plan.step_id, [], error=text)
            await self.bus.publish(self.bus.subjects.step_result, result)

    # ------------------------------------------------------------ results

    async def _send_outputs(self) -> None:
        while True:
            epoch, step, output = await self._outbox.get()
            if epoch != self.bus.epoch:
                continue
            self._note(step.plan, output)
            try:
                await self._pass_on(epoch, step, output)
            except EpochOver:
                pass
            except Exception as error:
                await self._report_failure(epoch, step, error)

    async def _pass_on(self, epoch: Epoch, step: StepInput, output: StepOutput) -> None:
        """To the next stage, or to whoever waits for the result. Raises as Sender.send does."""
        seconds, waited = [*step.seconds, output.seconds], [*step.waited, output.waited]
        if self._sender is not None and output.hidden is not None:
            await self._sender.send(epoch, StepInput(step.plan, None, seconds, waited), output.hidden)
            return
        subjects, step_id = self.bus.subjects, step.plan.step_id
        result = StepResult(
            step_id, output.tokens, seconds, waited, logprobs=output.logprobs, refused=output.refused
        )
        await self.bus.publish(subjects.step_result, result)
        await self.bus.publish(subjects.step_timing, StepTiming(step_id, step.plan.load(), seconds))

    def _note(self, plan: StepPlan, output: StepOutput) -> None:
        self._step_seconds.observe(output.seconds)
        self._stall_seconds.inc(output.waited)
        load = plan.load()
        self._tokens.labels(self._index, "prefill").inc(load.prefill_tokens)
        self._tokens.labels(self._index, "decode").inc(load.decode_jobs)
        now = time.time_ns()
        for job in plan.jobs:
            if job.trace is not None:
                self.tracing.past(
                    "compute", job.trace, output.seconds, now,
                    stage=self._index, tokens=len(job.tokens), batch=len(plan.jobs),
                )  # fmt: skip

    # ------------------------------------------------------------ transfers

    async def _report_transfers(self) -> None:
        """Acknowledge copies, all that are waiting in one message per rank.

        What an epoch's copies did must not be said in the next one, where their ids mean others: `publish`
        stamps the epoch of its own moment, which may begin while the copies of before still run.
        Raises CopyFailed: the manager would wait for ever, so this stage must be replaced.
        """
        while True:
            done = [await self._transfers.get()]
            while not self._transfers.empty():
                done.append(self._transfers.get_nowait())
            epoch = self.bus.epoch
            if self._copies_epoch != epoch:
                continue
            by_rank: dict[int, list[Transferred]] = {}
            for item in done:
                if isinstance(item, Exception):
                    raise item
                rank, transferred = item
                by_rank.setdefault(rank, []).append(transferred)
            for rank, finished in by_rank.items():
                if self.bus.epoch == epoch:
                    message = TransferDone(self._index, finished, rank)
                    await self.bus.publish(self.bus.subjects.transfer_done, message)

    def update_metrics(self) -> None:
        self._ranks.set(0 if self._gang_lost.done() else self.config.parallel.tensor_parallel)
