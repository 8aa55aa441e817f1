"""A stage's shell: plans and activations in, activations or tokens out, copies beside the computation.

    inbox ──(epoch fence, copies start)──> queue ──> compute thread ──> next stage, or scheduler + profiler
    copy threads ──> transfers ──> KV-cache manager

Copies start when their plan arrives, also while an earlier step computes: the KV-cache manager never moves
blocks that a step in flight uses. Only at a new epoch must the old step be over first.

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
from services.stage.transport import ActivationTransport
from shared.bus import Delivery, Subscription
from shared.config import Config
from shared.errors import CopyFailed, RankLost
from shared.ids import Epoch, TransferId
from shared.messages import (
    Hello,
    Limits,
    StepInput,
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

    def __init__(self, config: Config, index: int, processes: RankProcesses | None = None) -> None:
        super().__init__(config, f"stage{index}")
        self._processes = processes
        self._index = index
        self._last = index == config.parallel.pipeline_stages - 1
        self._compute_thread = ThreadPoolExecutor(1, thread_name_prefix="compute")
        self._transport = ActivationTransport(config.stage)
        self._steps: asyncio.Queue[tuple[Epoch, StepInput]] = asyncio.Queue(QUEUE_DEPTH)
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
        self._failed = self.registry.counter("skipjoin_failed_steps", "Iterations that raised.", labels)
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
        self.supervisor.start("inbox", self._read_inbox(inbox))
        self.supervisor.start("compute", self._compute_steps())
        self.supervisor.start("transfers", self._report_transfers())
        self.supervisor.start("ranks", self._watch_ranks())

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
        self._transport.close()

    def hello(self) -> Hello:
        capacity = self.config.kv.device_blocks * self.config.kv.block_size
        limits = Limits(self._runner.max_model_len, capacity)
        ready = not self._gang_lost.done()
        return Hello(self.name, self.bus.instance, ready, self._runner.hardware, limits)

    # ------------------------------------------------------------ steps

    async def _read_inbox(self, inbox: Subscription) -> None:
        async for delivery in inbox:
            step = self._step_of(delivery)
            if step is None:
                continue
            if delivery.epoch > self.bus.epoch:
                await self._begin_epoch(delivery.epoch)
            self._runner.start_transfers(step.plan.directives)
            if step.plan.jobs:
                await self._steps.put((delivery.epoch, step))
            elif not self._last:
                await self.bus.publish(self.bus.subjects.stage_step(self._index + 1), StepInput(step.plan))

    def _step_of(self, delivery: Delivery) -> StepInput | None:
        """The step in a message, or None (counted) if it is of the past or no step at all."""
        match delivery.body:
            case StepPlan() as plan:
                step = StepInput(plan)
            case StepInput() as step:
                pass
            case other:
                self.log.error("unexpected %s from %s", type(other).__name__, delivery.source)
                return None
        if delivery.epoch < self.bus.epoch:
            self.bus.count("stale_epoch")
            if step.hidden is not None:
                self._transport.discard(step.hidden)
            return None
        return step

    async def _begin_epoch(self, epoch: Epoch) -> None:
        """Steps and transfers of before are void. A step that computes right now writes blocks which the new
        epoch may give to others: it must be over before anything else starts.
        """
        self.log.info("epoch %d begins", epoch)
        self.bus.epoch = epoch
        await self._steps.join()
        await self._loop.run_in_executor(self._compute_thread, self._runner.reset)
        # Reports of before are on the queue by now: they were put there before `reset` returned.
        while not self._transfers.empty():
            self._transfers.get_nowait()
        self._copies_epoch = epoch

    async def _compute_steps(self) -> None:
        while True:
            epoch, step = await self._steps.get()
            try:
                if epoch == self.bus.epoch:
                    await self._compute(epoch, step)
                elif step.hidden is not None:
                    self._transport.discard(step.hidden)
            finally:
                self._steps.task_done()

    async def _compute(self, epoch: Epoch, step: StepInput) -> None:
        try:
            output = await self._loop.run_in_executor(self._compute_thread, self._run, step)
            if epoch == self.bus.epoch:
                await self._pass_on(step, output)
        except RankLost:
            raise  # no fault of the jobs: the stage restarts, and they are recomputed
        except Exception as error:
            self._failed.labels(self._index).inc()
            self.log.exception("step %d failed", step.plan.step_id)
            if epoch == self.bus.epoch:
                text = f"stage {self._index}: {type(error).__name__}: {error}"
                result = StepResult(step.plan.step_id, [], error=text)
                await self.bus.publish(self.bus.subjects.step_result, result)
            if isinstance(error, torch.AcceleratorError):
                raise  # the context is broken, all further steps would fail: this stage must be replaced

    def _run(self, step: StepInput) -> StepOutput:
        """In the compute thread."""
        hidden: Tensor | None = None if step.hidden is None else self._transport.unpack(step.hidden)
        return self._runner.step(step.plan, hidden)

    async def _pass_on(self, step: StepInput, output: StepOutput) -> None:
        self._note(step.plan, output)
        seconds, waited = [*step.seconds, output.seconds], [*step.waited, output.waited]
        subjects = self.bus.subjects
        if output.hidden is not None:
            hidden = await asyncio.to_thread(self._transport.pack, output.hidden)
            await self.bus.publish(
                subjects.stage_step(self._index + 1), StepInput(step.plan, hidden, seconds, waited)
            )
            return
        step_id = step.plan.step_id
        result = StepResult(step_id, output.tokens, seconds, waited, logprobs=output.logprobs)
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
