"""Prints what a stage's decode step costs over its bare linear layers (budget: 1.25, design section 7).

    OMP_WAIT_POLICY=passive GLIBC_TUNABLES=glibc.malloc.hugetlb=1 \\
        python -m loadgen.stage_step [--model FOLDER] [--context 256] [--batch 1 4 8 16]

bare: torch.nn.functional.linear over every weight of the model, nothing else
packed: the same weights laid out once for oneDNN, as the stage uses them on a CPU
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from services.stage import checkpoint
from services.stage.packed_linear import PackedLinear
from services.stage.runner import StageRunner
from shared.config import Config, KVConfig, ModelConfig, StageConfig
from shared.ids import JobId, StepId
from shared.messages import Sampling, StepJob, StepPlan

_BLOCK = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--repeat", type=int, default=10)
    options = parser.parse_args()
    blocks_per_job = -(-options.context // _BLOCK)
    config = Config(
        model=ModelConfig(path=options.model, device="cpu"),
        kv=KVConfig(block_size=_BLOCK, device_blocks=max(options.batch) * blocks_per_job, host_blocks=0),
        stage=StageConfig(threads=1),
    )
    folder = checkpoint.resolve(config.model, lambda text, _: print(text))
    runner = StageRunner(config, 0, folder, on_transferred=lambda _: None, on_copy_error=lambda *_: None)
    matrices = _linear_weights(folder)
    packed = [PackedLinear(matrix, None) for matrix in matrices]
    print(f"{folder.name}, float32, 1 thread, context {options.context}, best of {options.repeat}, ms")
    print("| batch | bare linear | packed linear | whole step | step / bare | step / packed |")
    print("|---|---|---|---|---|---|")
    for batch in options.batch:
        inputs = {matrix.shape[1]: torch.randn(batch, matrix.shape[1]) for matrix in matrices}
        bare = _best(options.repeat, lambda inputs=inputs: _run_bare(matrices, inputs))
        laid = _best(options.repeat, lambda inputs=inputs: _run_packed(matrices, packed, inputs))
        plan = _plan(batch, options.context, blocks_per_job)
        step = _best(options.repeat, lambda plan=plan: runner.step(plan))
        row = f"{bare:.1f} | {laid:.1f} | {step:.1f} | {step / bare:.2f} | {step / laid:.2f}"
        print(f"| {batch} | {row} |", flush=True)
    runner.close()


def _linear_weights(folder: Path) -> list[Tensor]:
    """Every [out, in] weight that a decode step multiplies with; a tied embedding counts as the head."""
    weights: list[Tensor] = []
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            names = set(file.keys())
            tied = not any("lm_head" in name for name in names)
            for name in names:
                weight = file.get_tensor(name)
                if (
                    weight.dim() == 2
                    and "embed_positions" not in name
                    and (tied or "embed_tokens" not in name)
                ):
                    weights.append(weight.clone())
    return weights


@torch.inference_mode()
def _run_bare(matrices: list[Tensor], inputs: dict[int, Tensor]) -> None:
    for matrix in matrices:
        torch.nn.functional.linear(inputs[matrix.shape[1]], matrix)


@torch.inference_mode()
def _run_packed(matrices: list[Tensor], packed: list[PackedLinear], inputs: dict[int, Tensor]) -> None:
    for matrix, layer in zip(matrices, packed, strict=True):
        layer(inputs[matrix.shape[1]])


def _plan(batch: int, context: int, blocks_per_job: int) -> StepPlan:
    """A decode step of `batch` jobs with greedy sampling, their blocks scattered over the pool."""
    blocks = np.random.default_rng(0).permutation(batch * blocks_per_job).astype("<i4")
    tables = blocks.reshape(batch, blocks_per_job)
    jobs = [
        StepJob(JobId(i), [i + 100], context - 1, tables[i].tobytes(), Sampling(temperature=0.0))
        for i in range(batch)
    ]
    return StepPlan(StepId(1), jobs)


def _best(repeat: int, call: Callable[[], object]) -> float:
    """Fastest of `repeat` calls after a warm one, ms."""
    call()
    times: list[float] = []
    for _ in range(repeat):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times) * 1e3


if __name__ == "__main__":
    main()
