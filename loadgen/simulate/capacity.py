"""How much load a pipeline can carry, from the cost model alone."""

from typing import Any, TypeVar, cast

from loadgen.simulate.models import ModelProfile
from loadgen.simulate.results import Floats
from loadgen.workload.lengths import Sampler

_SAMPLES = 1 << 16

_Number = TypeVar("_Number", float, Floats)


def work(
    model: ModelProfile,
    prompt: _Number,
    output: _Number,
    batch: int = 16,
    stages: int = 1,
    overhead_s: float = 0.0,
) -> _Number:
    """Seconds that a request occupies each stage when batches are full. prompt, output: tokens"""
    share = cast(_Number, model.cost.share(cast(Any, prompt), cast(Any, output), batch))
    each = (share + output * overhead_s / batch) / stages
    return each + stages * model.stage_prefill_s if stages > 1 else each


def sustained(
    model: ModelProfile, sampler: Sampler, batch: int = 16, stages: int = 1, overhead_s: float = 0.0
) -> float:
    """Requests a second at full batches, which is what run to completion holds while KV fits."""
    prompt, output = sampler(_SAMPLES, 0).astype(float).T
    return float(1 / work(model, prompt, output, batch, stages, overhead_s).mean())
