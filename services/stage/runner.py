"""One stage's core: weights, KV tiers, transfers and the computation of its share of an iteration."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from services.stage import checkpoint, paged_decode, weights
from services.stage.attention_plan import AttentionPlan, PagedKV
from services.stage.batch import Batch
from services.stage.checkpoint import ProgressFn
from services.stage.collectives import Alone, Collectives
from services.stage.copier import Copier
from services.stage.grammars import Grammars, Masks
from services.stage.logprobs import logprobs_of
from services.stage.model_slice import ModelSlice, load_config
from services.stage.packed_linear import can_pack
from services.stage.penalties import adjust
from services.stage.sampling import sample
from services.stage.tiers import BlockShape, Tiers, allocate
from shared.config import Config, ModelConfig
from shared.errors import ConfigError
from shared.ids import TransferId
from shared.messages import DefineGrammar, Directive, StepPlan, TokenLogprobs, Transferred


@dataclass(frozen=True, slots=True)
class StepOutput:
    """hidden: [rows, hidden] for the next stage; None from the last stage or for a plan without jobs
    tokens: last stage: one per job whose `sampling` was set, in the plan's order
    seconds: spent computing; waited: blocked on `plan.waits` before that
    logprobs: last stage: one for each of `tokens`, or none at all if no job asks for them
    refused: last stage: see `StepResult.refused`
    """

    hidden: Tensor | None = None
    tokens: list[int] = field(default_factory=list)
    seconds: float = 0.0
    waited: float = 0.0
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    refused: list[str | None] = field(default_factory=list)


class StageRunner:
    """Stage number `stage` of `config.parallel.pipeline_stages`, or one rank of it, on this process's device.

    All calls but `start_transfers` come from one thread, the compute thread; the callbacks are called from
    it and from copy threads.

    block_bytes: KV bytes of one block on this stage and rank
    hardware: name of the accelerator, empty on a CPU
    max_model_len: longest prompt + answer that model and configuration allow, tokens
    """

    def __init__(
        self,
        config: Config,
        stage: int,
        folder: Path,
        *,
        on_transferred: Callable[[Transferred], None],
        on_copy_error: Callable[[TransferId, Exception], None],
        progress: ProgressFn = lambda text, fraction: None,
        collectives: Collectives | None = None,
    ) -> None:
        """folder: from `checkpoint.resolve`; collectives: with the stage's other ranks, if it has any

        Raises CheckpointError, ConfigError, KVCapacityError.
        """
        torch.set_num_threads(config.stage.threads)
        self._collectives: Collectives = collectives or Alone()
        self.max_model_len = checkpoint.max_model_len(config.model, folder)
        self.device = choose_device(config.model)
        self.hardware = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else ""
        self._slice = self._load_slice(config, stage, folder, progress)
        self._tiers = self._allocate_tiers(config)
        self.block_bytes = self._tiers.block_bytes
        self._kv = PagedKV(self._tiers.device, self._slice.layers.start)
        self._finish_kernels()  # the tiers are zero before a copy, on a stream of its own, can write to them
        self._copier = Copier(self._tiers, config.kv.copy_threads, on_transferred, on_copy_error)
        vocab: int = self._slice.config.vocab_size
        self._grammars = Grammars(folder, vocab, config.scheduler.max_batch_size)
        self._masks: Future[Masks] | None = None

    def _load_slice(self, config: Config, stage: int, folder: Path, progress: ProgressFn) -> ModelSlice:
        dtype: torch.dtype = getattr(torch, config.model.dtype)
        parallel = config.parallel
        part = ModelSlice(
            load_config(folder),
            parallel.pipeline_stages,
            stage,
            dtype,
            parallel.layer_split,
            self._collectives,
        )
        text = f"loading layers {part.layers.start} to {part.layers.stop - 1}"
        if paged_decode.serves(self.device, dtype) and can_pack(self.device.type, dtype):
            part.use_cpu_layers()
        weights.load(part, folder, self.device, lambda fraction: progress(text, fraction))
        return part

    def _allocate_tiers(self, config: Config) -> Tiers:
        part = self._slice
        shape = BlockShape(len(part.layers), config.kv.block_size, part.kv_heads, part.head_dim, part.dtype)
        return allocate(shape, config.kv, self.device)

    @property
    def is_first(self) -> bool:
        return self._slice.is_first

    @property
    def is_last(self) -> bool:
        return self._slice.is_last

    def start_transfers(self, directives: Sequence[Directive]) -> None:
        """Begin copies before the step that came with them, which will not repeat them; from any thread."""
        self._copier.start(directives)

    def define(self, definition: DefineGrammar) -> None:
        """On the last stage, before the steps that name the grammar; from any thread."""
        self._grammars.define(definition)

    def step(self, plan: StepPlan, hidden: Tensor | None = None) -> StepOutput:
        """Start the plan's transfers, wait for those that it reads, and compute its jobs.

        hidden: [rows, hidden] from the stage before; None on the first stage
        Raises CopyFailed if a transfer that the step reads did not happen, UnknownGrammar (last stage) if a
        grammar was not defined.
        """
        waited = self.prepare(plan)
        return replace(self.compute(plan, hidden), waited=waited)

    def prepare(self, plan: StepPlan) -> float:
        """The first half of a step: its transfers, and masks begun. Returns the seconds it was blocked on the
        transfers.

        Raises CopyFailed and UnknownGrammar.
        """
        self._copier.start(plan.directives)
        self._grammars.forget(plan.forgotten)
        self._masks = self._grammars.begin(plan) if self.is_last and self._collectives.rank == 0 else None
        return self._copier.wait(plan.waits)

    def compute(self, plan: StepPlan, hidden: Tensor | None = None) -> StepOutput:
        """The second half; ranks other than the first get `hidden` from that one, and draw no tokens."""
        if not plan.jobs:
            return StepOutput()
        began = time.perf_counter()
        try:
            with torch.inference_mode():
                batch = Batch.of(plan.jobs, self.device)
                output = self._compute(batch, hidden)
                drawn = self._draw(batch, output) if self.is_last else StepOutput(output)
        finally:
            # Also when it has failed: kernels that are queued still write to blocks which are others' soon.
            self._finish_kernels()
        return replace(drawn, seconds=time.perf_counter() - began)

    def _finish_kernels(self) -> None:
        """Kernels run on after the call that launched them: until here, a step is not over."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def _compute(self, batch: Batch, hidden: Tensor | None) -> Tensor:
        """[rows, hidden] after this stage's layers."""
        if self.is_first:
            flat = self._slice.embed(batch.tokens, batch.positions)
        else:
            flat = self._received(hidden, batch).unsqueeze(0)
        return self._slice.run_layers(flat, batch.positions, AttentionPlan(batch.spans, self._kv))[0]

    def _received(self, hidden: Tensor | None, batch: Batch) -> Tensor:
        """[rows, hidden] of the stage before, on the device of every rank."""
        if hidden is not None:
            hidden = hidden.to(self.device)
        elif self._collectives.rank == 0:
            raise ValueError("a stage after the first needs the activations of the one before")
        else:
            shape = (batch.tokens.shape[1], self._slice.config.hidden_size)
            hidden = torch.empty(shape, dtype=self._slice.dtype, device=self.device)
        return self._collectives.broadcast(hidden)

    def _draw(self, batch: Batch, hidden: Tensor) -> StepOutput:
        draws = sorted(batch.draws, key=lambda draw: draw.index)
        if not draws:
            return StepOutput()
        logits = self._slice.logits(hidden[[draw.row for draw in draws]])
        if self._collectives.rank > 0:
            return StepOutput()
        samplings = [draw.sampling for draw in draws]
        adjusted = adjust(logits, samplings, [draw.history for draw in draws])
        masks = self._masks.result() if self._masks else None
        if masks is not None:
            adjusted = masks.apply(adjusted)
        tokens = sample(adjusted, samplings, [draw.position for draw in draws])
        refused = masks.refusals(len(draws)) if masks else []
        return StepOutput(tokens=tokens, logprobs=logprobs_of(logits, tokens, samplings), refused=refused)

    def reset(self) -> None:
        """A new epoch: forget transfers; returns when none is running any more."""
        self._copier.reset()
        self._grammars.reset()

    def close(self) -> None:
        self._grammars.close()
        self._copier.close()


def choose_device(model: ModelConfig) -> torch.device:
    """Raises ConfigError if CUDA is demanded and is not there."""
    available = torch.cuda.is_available()
    if model.device == "cuda" and not available:
        raise ConfigError("model.device: cuda is not available on this machine, set it to cpu or auto")
    if model.device == "cpu" or not available:
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())  # of those that Ray has made visible to us
