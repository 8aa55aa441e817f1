"""The scheduler and KV-cache cores driven together under a virtual clock, with stages that only take time.

Transfers complete when the test says so, so that every interleaving can be reached.
"""

import struct
from collections import Counter
from collections.abc import Callable

from services.kvcache.core import KVCache
from services.scheduler.core import Scheduler
from services.scheduler.job import Job
from services.scheduler.tally import state_of
from shared.clock import VirtualClock
from shared.config import Config, parse
from shared.costmodel import CostModel
from shared.ids import JobId, StepId
from shared.messages import (
    Direction,
    Directive,
    FinishReason,
    JobTokens,
    Limits,
    Sampling,
    StepPlan,
    StepResult,
    Submit,
    Timeline,
)
from tests.kv_contents import KVContents

PER_TOKEN = CostModel(
    prefill_a=0.0, prefill_b=0.1, prefill_c=0.0, decode_a=1.0, decode_b=0.0, decode_c=0.0, samples=1
)
"""Prefill takes 0.1 s a token, a decode iteration 1 s whatever is in it."""


def create_config(**sections: dict[str, object]) -> Config:
    return parse(sections)


def create_submit(
    job_id: int,
    *,
    prompt: int | list[int] = 10,
    max_tokens: int = 2,
    stop: list[int] | None = None,
    **fields: object,
) -> Submit:
    """prompt: its tokens, or how many"""
    return Submit(
        JobId(job_id),
        "gateway",
        list(range(prompt)) if isinstance(prompt, int) else prompt,
        max_tokens,
        Sampling(temperature=0.0),
        stop or [],
        **fields,  # type: ignore[arg-type]
    )


class Recorder:
    """An observer that remembers. iterations: begin and end of those with a job, seconds since its arrival"""

    def __init__(self) -> None:
        self.events: list[tuple[str, JobId, float]] = []
        self.ends: dict[JobId, tuple[FinishReason, float]] = {}
        self.timelines: dict[JobId, Timeline] = {}
        self.iterations: dict[JobId, list[tuple[float, float]]] = {}

    def dispatched(self, job: Job, now: float) -> str | None:
        self.events.append(("dispatched", job.job_id, now))
        return None

    def completed(self, job: Job, now: float) -> None:
        self.events.append(("completed", job.job_id, now))

    def preempted(self, job: Job, now: float) -> None:
        self.events.append(("preempted", job.job_id, now))

    def iterated(self, step_id: StepId, batch: list[Job], began: float, now: float) -> None:
        for job in batch:
            if job.job_id not in self.ends:
                self.iterations.setdefault(job.job_id, []).append((began - job.arrived, now - job.arrived))

    def finished(self, job: Job, reason: FinishReason, now: float, timeline: Timeline) -> None:
        assert job.job_id not in self.ends, "a job ends once"
        self.ends[job.job_id] = (reason, now)
        self.timelines[job.job_id] = timeline


class Cores:
    """One pipeline of pure cores. watched: what the blocks hold is followed, too (costs O(context) a step)"""

    def __init__(
        self, config: Config, cost: CostModel = PER_TOKEN, copies: int = 1, *, watched: bool = False
    ) -> None:
        self.clock = VirtualClock()
        self.recorder = Recorder()
        capacity = config.kv.device_blocks * config.kv.block_size
        self.scheduler = Scheduler(config, self.recorder, Limits(max_model_len=100_000, capacity=capacity))
        self.scheduler.set_cost_model(cost)
        self.kv = KVCache(config.kv, copies)
        self.copies = copies
        self.in_flight: list[StepPlan] = []
        self.moving: list[Directive] = []
        self.contents = KVContents(config.kv.block_size) if watched else None
        self.prompts: dict[JobId, list[int]] = {}
        self.received: dict[JobId, list[int]] = {}
        self.next_token: Callable[[JobId, int], int] = lambda job_id, position: 1000 + position

    def submit(self, *submits: Submit) -> None:
        for submit in submits:
            self.prompts[submit.job_id] = submit.prompt + submit.output
            assert self.scheduler.submit(submit, None, self.clock.now()) is None

    def plan(self) -> bool:
        """One round with the KV-cache manager; True if a step with jobs went out."""
        request = self.scheduler.plan_request(self.clock.now())
        if request is None:
            return False
        reply = self.kv.plan(request)
        step = self.scheduler.dispatch(reply, self.clock.now())
        if step is None or not step.jobs:
            self.check()
            if reply.dropped:
                self._begin(step)
                return self.plan()
        return self._begin(step)

    def _begin(self, step: StepPlan | None) -> bool:
        """What the stages do with a step; True if it has jobs."""
        if step is None:
            return False
        self.moving += step.directives
        for directive in step.directives if self.contents else ():
            self.contents.begin(directive)
        if step.jobs:
            self.in_flight.append(step)
        self.check()
        return bool(step.jobs)

    def check(self) -> None:
        """No block is lost, no job is in two batches, and no two of them or of the copies share a block; the
        counts of jobs are those that counting gives.
        """
        self.kv.check()
        counted = Counter((state_of(job), job.level) for job in self.scheduler._jobs.values())
        assert self.scheduler.count_jobs() == counted
        flying = [job for step in self.in_flight for job in step.jobs]
        assert len(flying) == len({job.job_id for job in flying}), "a job is in two batches"
        owners: dict[int, JobId] = {}
        for job in flying:
            table = struct.unpack(f"<{len(job.table) // 4}i", job.table)
            assert len(table) * self.kv.block_size >= job.start + len(job.tokens), "the table is too short"
            for block in table:
                assert owners.setdefault(block, job.job_id) == job.job_id, f"block {block} has two owners"
        for directive in self.moving:
            for move in directive.moves:
                first = move.src if directive.direction is Direction.OUT else move.dst
                for block in range(first, first + move.count):
                    owner = owners.setdefault(block, directive.job_id)
                    assert owner == directive.job_id, f"block {block} is in use while it moves"

    def finish_step(self, index: int = 0, error: str | None = None) -> None:
        """The stages are done with a step; its own swap-ins must have been waited for."""
        step = self.in_flight.pop(index)
        for transfer_id in step.waits:
            self.finish_transfer(transfer_id)
        for job in step.jobs if self.contents else ():
            tokens = self.prompts[job.job_id] + self.received.get(job.job_id, [])
            self.contents.compute(job, tokens, failed=error is not None)
        seconds = self.scheduler.cost.seconds(step.load())
        self.clock.advance(seconds)
        result = StepResult(step.step_id, [] if error else self.compute(step), [seconds], [0.0], error)
        for items in self.scheduler.complete(result, self.clock.now()).values():
            self.receive(items)

    def compute(self, step: StepPlan) -> list[int]:
        """The tokens that a step draws."""
        drawing = [job for job in step.jobs if job.sampling is not None]
        return [self.next_token(job.job_id, job.start + len(job.tokens)) for job in drawing]

    def receive(self, items: list[JobTokens]) -> None:
        for item in items:
            have = self.received.setdefault(item.job_id, [])
            assert item.start == len(have), "tokens arrive in order, none twice"
            have += item.tokens

    def finish_transfer(self, transfer_id: int) -> None:
        for directive in [d for d in self.moving if d.transfer_id == transfer_id]:
            self.moving.remove(directive)
            if self.contents:
                self.contents.finish(directive)
            for copy in range(self.copies):
                self.kv.transfer_done(directive.transfer_id, copy, 0)
            self.scheduler.moved([directive.transfer_id], self.clock.now())
            self.check()

    def finish_all_transfers(self) -> None:
        for directive in list(self.moving):
            self.finish_transfer(directive.transfer_id)

    def iterate(self, count: int) -> None:
        """That many iterations, one batch in flight at a time."""
        for _ in range(count):
            self.plan()
            self.finish_step()

    def run(self, limit: int = 100_000) -> None:
        """Until every job has ended."""
        for _ in range(limit):
            if not self.plan() and not self.in_flight:
                if self.scheduler.unfinished == 0:
                    break
                assert self.moving, "work is pending and nothing moves: a stall"
                self.finish_all_transfers()
                continue
            while self.plan():
                pass
            if self.in_flight:
                self.finish_step()
        assert self.scheduler.unfinished == 0, f"not done after {limit} iterations"
        self.settle()

    def settle(self) -> None:
        """Let everything under way finish; then no job holds a block."""
        self.plan()
        while self.moving:
            self.finish_all_transfers()
            self.plan()
        self.kv.check()
        occupancy = self.kv.occupancy()
        assert occupancy["device"]["free"] == self.kv.device.total
        assert occupancy["host"]["free"] + self.kv.cached_blocks == self.kv.host.total

    def completion_times(self) -> list[float]:
        return [self.recorder.ends[job_id][1] for job_id in sorted(self.recorder.ends)]
