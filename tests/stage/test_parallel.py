"""Whatever the layout, with swaps and aborts in mid-batch: the tokens are those of Hugging Face `generate`.

Under tensor parallelism sums are added in another order. Where two tokens tie within that rounding either may
come, and `assert_same_text` compares their log-probabilities instead.
"""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from shared.config import Config, KVConfig, ModelConfig, ParallelConfig
from shared.messages import Direction

from .live_cores import LiveCores
from .models import assert_same_text, hf_generate, make_prompt
from .pipeline import make_config
from .stages import TIMEOUT_S

Tiny = Callable[[str], tuple[Path, torch.nn.Module]]
LAYOUTS = [(1, 1), (2, 1), (1, 2), (2, 2), (1, 3), (1, 4)]
LENGTHS = (5, 33, 1, 18, 41, 9, 26, 14)
TOKENS = 16
EVERY_ABORT = 5
"""Steps between two aborts."""


def run_crowd(config: Config, folder: Path, prompts: list[list[int]]) -> tuple[LiveCores, set[int]]:
    """All prompts at once, a pool for a few of them; some are aborted while a batch that holds them computes.

    Returns the cores when everything has ended, and the ids that were aborted.
    """
    chance = random.Random(len(prompts))
    aborted: set[int] = set()
    with LiveCores(config, folder) as cores:
        for job_id, prompt in enumerate(prompts):
            cores.submit_prompt(job_id, prompt, TOKENS)
        steps = 0
        while cores.scheduler.unfinished and len(aborted) < 3:
            while cores.plan():
                pass
            steps += 1
            if steps % EVERY_ABORT == 0 and cores.in_flight:
                victim = chance.choice(cores.in_flight[-1].jobs).job_id
                aborted.add(victim)
                cores.abort(victim)
            if cores.in_flight:
                cores.finish_step()
            else:
                cores.finish_all_transfers()
        cores.run()
        assert not cores.stages.failures
        return cores, aborted


def assert_texts(
    model: torch.nn.Module, prompts: list[list[int]], cores: LiveCores, aborted: set[int]
) -> None:
    for job_id, prompt in enumerate(prompts):
        output = cores.received.get(job_id, [])
        assert len(output) == TOKENS or (job_id in aborted and len(output) < TOKENS)
        if output:
            assert_same_text(model, prompt, hf_generate(model, prompt, len(output)), output)


@pytest.mark.parametrize(("ranks", "stages"), LAYOUTS)
@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral-sliding", "opt"])
def test_a_crowd_in_little_memory(tiny: Tiny, family: str, ranks: int, stages: int) -> None:
    folder, model = tiny(family)
    prompts = [make_prompt(length, seed=length) for length in LENGTHS]
    pools = {"device_blocks": 26, "host_blocks": 96, "prefix_reuse": False, "reserve_blocks": 2}
    config = make_config(folder, stages=stages, ranks=ranks, **pools)
    cores, aborted = run_crowd(config, folder, prompts)
    assert_texts(model, prompts, cores, aborted)
    assert len(aborted) == 3
    assert cores.swapped[Direction.OUT] > 0 and cores.swapped[Direction.IN] > 0


@pytest.mark.parametrize(("ranks", "stages"), [(3, 1), (1, 2)])
def test_a_crowd_of_the_embedded_model(embedded_model: Path, ranks: int, stages: int) -> None:
    """It has 9 heads and 3 KV heads."""
    model = AutoModelForCausalLM.from_pretrained(embedded_model)
    model.generation_config.eos_token_id = None
    prompts = [make_prompt(length, seed=length) for length in LENGTHS[:5]]
    config = Config(
        model=ModelConfig(device="cpu"),
        kv=KVConfig(block_size=4, device_blocks=26, host_blocks=48, prefix_reuse=False, reserve_blocks=2),
        parallel=ParallelConfig(pipeline_stages=stages, tensor_parallel=ranks, rank_timeout_s=TIMEOUT_S),
    )
    cores, aborted = run_crowd(config, embedded_model, prompts)
    assert_texts(model, prompts, cores, aborted)
    assert cores.swapped[Direction.OUT] > 0 and cores.swapped[Direction.IN] > 0
