"""A scheduler, a KV manager and a bus in miniature: drives the runners of all stages ."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor

from services.scheduler.job import Job as ScheduledJob
from services.stage.runner import StepOutput
from services.stage.transport import SharedMemory
from services.stage.transport.tensors import content_of, describe, restore
from shared.config import Config, KVConfig, ModelConfig, ParallelConfig
from shared.ids import BlockId, JobId, StepId, TransferId
from shared.messages import (
    DefineGrammar,
    Direction,
    Directive,
    GrammarState,
    Move,
    Sampling,
    StepJob,
    StepPlan,
    Submit,
    TokenHistory,
    TokenLogprobs,
)

from .stages import TIMEOUT_S, Stages

_INLINE_BYTES = 512
GREEDY = Sampling(temperature=0.0)


@dataclass(eq=False)
class Job:
    """tokens: prompt and output; computed: how many of them have KV; blocks: in the tier where it is
    logprobs: of its output, if its sampling asks for them
    """

    id: JobId
    prompt: list[int]
    sampling: Sampling = GREEDY
    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    min_tokens: int = 0
    barred: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    grammar_id: int | None = None

    @property
    def output(self) -> list[int]:
        return self.tokens[len(self.prompt) :]

    @property
    def left_to_compute(self) -> int:
        return len(self.tokens) - self.computed

    def grammar_state(self) -> GrammarState | None:
        if self.grammar_id is None:
            return None
        return GrammarState(self.grammar_id, np.array(self.output, "<i4").tobytes())

    def history(self) -> TokenHistory | None:
        """As the scheduler would send it."""
        submit = Submit(self.id, "", self.prompt, 10_000, self.sampling, output=self.output)
        fields = {"min_tokens": self.min_tokens, "barred_token_ids": self.barred}
        return ScheduledJob(replace(submit, **fields), None, 0.0).history()


def make_config(folder: Path, *, stages: int = 1, ranks: int = 1, **kv: object) -> Config:
    options = {"block_size": 4, "device_blocks": 64, "host_blocks": 64} | kv
    return Config(
        model=ModelConfig(path=str(folder), device="cpu"),
        kv=KVConfig(**options),
        parallel=ParallelConfig(pipeline_stages=stages, tensor_parallel=ranks, rank_timeout_s=TIMEOUT_S),
    )


class Pipeline:
    """Blocks are handed out in scrambled order, so that no table is contiguous by luck."""

    def __init__(self, config: Config, folder: Path, seed: int = 3) -> None:
        self._stages = Stages(config, folder)
        self.runners = self._stages.runners
        self.failures = self._stages.failures
        self.memory = SharedMemory()
        self.block_size = config.kv.block_size
        shuffle = random.Random(seed)
        self.free_device = list(range(config.kv.device_blocks))
        self.free_host = list(range(config.kv.host_blocks))
        shuffle.shuffle(self.free_device)
        shuffle.shuffle(self.free_host)
        self._ids = iter(range(1, 1_000_000))

    def __enter__(self) -> "Pipeline":
        return self

    def __exit__(self, *_: object) -> None:
        self._stages.close()
        self.memory.close()

    def new_job(self, prompt: list[int], sampling: Sampling = GREEDY) -> Job:
        return Job(JobId(next(self._ids)), prompt, sampling, tokens=list(prompt))

    def step(
        self,
        shares: Sequence[tuple[Job, int]],
        directives: Sequence[Directive] = (),
        waits: Sequence[TransferId] = (),
    ) -> list[StepOutput]:
        """Compute so many tokens of each job on all stages; jobs that then have all computed get one more."""
        plan = self.plan(shares, directives, waits)
        outputs: list[StepOutput] = []
        hidden = None
        for runner in self.runners:
            output = runner.step(plan, hidden)
            outputs.append(output)
            if output.hidden is not None:
                hidden = self.carry(output.hidden)
        drawn = iter(outputs[-1].tokens)
        scored = iter(outputs[-1].logprobs or [None] * len(outputs[-1].tokens))
        for job, count in shares:
            job.computed += count
            if job.left_to_compute == 0:
                job.tokens.append(next(drawn))
                logprobs = next(scored)
                assert (logprobs is None) == (job.sampling.logprobs is None)
                job.logprobs += [logprobs] if logprobs else []
        assert next(drawn, None) is None
        return outputs

    def carry(self, hidden: Tensor) -> Tensor:
        """Small activations as bytes, others through shared memory."""
        content = content_of(hidden)
        if len(content) <= _INLINE_BYTES:
            return restore(describe(hidden), bytearray(content))
        name, carried = self.memory.write(hidden.contiguous()), torch.empty_like(hidden)
        self.memory.read(name, carried)
        self.memory.release(name)
        return carried

    def plan(
        self, shares: Sequence[tuple[Job, int]], directives: Sequence[Directive], waits: Sequence[TransferId]
    ) -> StepPlan:
        jobs: list[StepJob] = []
        for job, count in shares:
            self._grow(job, job.computed + count)
            jobs.append(
                StepJob(
                    job.id,
                    job.tokens[job.computed : job.computed + count],
                    job.computed,
                    np.array(job.blocks, "<i4").tobytes(),
                    job.sampling if count == job.left_to_compute else None,
                    history=job.history(),
                    grammar=job.grammar_state() if count == job.left_to_compute else None,
                )
            )
        return StepPlan(StepId(next(self._ids)), jobs, list(directives), list(waits))

    def define(self, definition: DefineGrammar) -> None:
        self.runners[-1].define(definition)

    def swap_out(self, job: Job) -> tuple[Directive, list[int]]:
        """The directive, and the device blocks that are free once it is done."""
        left = job.blocks
        job.blocks = [self.free_host.pop() for _ in left]
        return self._directive(job, Direction.OUT, left), left

    def swap_in(self, job: Job) -> Directive:
        """Into whatever device blocks are free now."""
        left = job.blocks
        job.blocks = [self.free_device.pop() for _ in left]
        self.free_host += left
        return self._directive(job, Direction.IN, left)

    def wait(self, directive: Directive) -> None:
        self._stages.wait(directive.transfer_id)

    def _directive(self, job: Job, direction: Direction, sources: list[int]) -> Directive:
        moves = [Move(BlockId(a), BlockId(b), 1) for a, b in zip(sources, job.blocks, strict=True)]
        return Directive(TransferId(next(self._ids)), job.id, direction, moves)

    def _grow(self, job: Job, context: int) -> None:
        while len(job.blocks) * self.block_size < context:
            job.blocks.append(self.free_device.pop())
