"""The runner's text equals transformers' own, however the work is cut into steps, stages and swaps."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from services.stage import paged_decode
from services.stage.runner import StageRunner
from shared.config import Config, KVConfig, ModelConfig
from shared.errors import ConfigError, CopyFailed, KVCapacityError
from shared.ids import TransferId
from shared.messages import Sampling

from .models import CONFIGS, assert_same_text, hf_generate, make_prompt
from .pipeline import Job, Pipeline, make_config

Tiny = Callable[[str], tuple[Path, torch.nn.Module]]
TOKENS = 24


def runner_of(pipeline: Pipeline) -> StageRunner:
    runner = pipeline.runners[0]
    assert isinstance(runner, StageRunner)
    return runner


def run_everything_at_once(pipeline: Pipeline) -> list[Job]:
    """Whole and chunked prefills beside decodes; a swap out and in while others take the blocks."""
    short, long, middle, single = (pipeline.new_job(make_prompt(n, seed=n)) for n in (5, 41, 18, 1))
    pipeline.step([(short, 5)])
    pipeline.step([(long, 16), (short, 1)])
    pipeline.step([(short, 1), (long, 16), (middle, 18)])
    pipeline.step([(middle, 1), (long, 9), (short, 1)])
    pipeline.step([(short, 1), (single, 1), (middle, 1), (long, 1)])

    out, freed = pipeline.swap_out(long)
    pipeline.step([(short, 1), (middle, 1)], [out])
    pipeline.wait(out)
    pipeline.free_device += freed
    late = pipeline.new_job(make_prompt(30, seed=30))
    pipeline.step([(late, 30), (single, 1)])  # overwrites blocks that `long` has left
    back = pipeline.swap_in(long)
    pipeline.step([(middle, 1)], [back])
    pipeline.step([(long, 1), (late, 1)], waits=[back.transfer_id])

    jobs = [short, long, middle, single, late]
    while unfinished := [job for job in jobs if len(job.output) < TOKENS]:
        pipeline.step([(job, job.left_to_compute) for job in unfinished])
    assert not pipeline.failures
    return jobs


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("family", CONFIGS)
def test_greedy_text_equals_transformers(tiny: Tiny, family: str, stages: int) -> None:
    folder, model = tiny(family)
    with Pipeline(make_config(folder, stages=stages), folder) as pipeline:
        jobs = run_everything_at_once(pipeline)
    for job in jobs:
        expected = hf_generate(model, job.prompt, TOKENS)
        assert_same_text(model, job.prompt, expected, job.output)


@pytest.mark.parametrize("family", CONFIGS)
def test_greedy_text_with_gathered_attention(
    tiny: Tiny, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on an accelerator, and on a CPU with several threads."""
    monkeypatch.setattr(paged_decode, "serves", lambda *_: False)
    folder, model = tiny(family)
    with Pipeline(make_config(folder), folder) as pipeline:
        assert not runner_of(pipeline)._kv.in_place
        jobs = run_everything_at_once(pipeline)
    for job in jobs:
        assert_same_text(model, job.prompt, hf_generate(model, job.prompt, TOKENS), job.output)


@pytest.mark.parametrize("gathered", [False, True])
def test_many_decodes_of_very_different_lengths(
    tiny: Tiny, gathered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if gathered:
        monkeypatch.setattr(paged_decode, "serves", lambda *_: False)
    folder, model = tiny("mistral-sliding")
    lengths = [3, 150, 4, 90, 33, 7]
    with Pipeline(make_config(folder, device_blocks=128), folder) as pipeline:
        jobs = [pipeline.new_job(make_prompt(n, seed=n)) for n in lengths]
        while len(jobs[0].output) < 8:
            pipeline.step([(job, job.left_to_compute) for job in jobs])
    for job in jobs:
        assert_same_text(model, job.prompt, hf_generate(model, job.prompt, 8), job.output)


def test_sampled_text_does_not_depend_on_batch_stages_or_ranks(tiny: Tiny) -> None:
    folder, _ = tiny("llama")
    sampling = Sampling(temperature=0.8, top_p=0.9, seed=11)
    prompt = make_prompt(9, seed=1)

    def generate(stages: int, neighbours: int, ranks: int = 1) -> list[int]:
        with Pipeline(make_config(folder, stages=stages, ranks=ranks), folder) as pipeline:
            job = pipeline.new_job(prompt, sampling)
            others = [pipeline.new_job(make_prompt(6, seed=n), Sampling(seed=n)) for n in range(neighbours)]
            while len(job.output) < 16:
                pipeline.step([(each, each.left_to_compute) for each in [*others, job]])
            return job.output

    alone = generate(stages=1, neighbours=0)
    assert generate(stages=1, neighbours=3) == alone
    assert generate(stages=2, neighbours=1) == alone
    assert generate(stages=2, neighbours=2, ranks=2) == alone


def test_plan_without_jobs_only_moves(tiny: Tiny) -> None:
    folder, _ = tiny("llama")
    with Pipeline(make_config(folder), folder) as pipeline:
        job = pipeline.new_job(make_prompt(10, seed=1))
        pipeline.step([(job, 10)])
        out, _ = pipeline.swap_out(job)
        (output,) = pipeline.step([], [out], waits=[out.transfer_id])
        assert (output.hidden, output.tokens, output.seconds) == (None, [], 0.0)
        runner = pipeline.runners[0]
        assert torch.equal(runner._tiers.host[job.blocks], runner._tiers.device[[m.src for m in out.moves]])


def test_step_that_waits_for_an_unknown_transfer_is_refused(tiny: Tiny) -> None:
    folder, _ = tiny("llama")
    with Pipeline(make_config(folder), folder) as pipeline:
        job = pipeline.new_job([5, 6])
        with pytest.raises(CopyFailed, match="transfer 99 is unknown"):
            pipeline.step([(job, 2)], waits=[TransferId(99)])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_reduced_precision_runs(tiny: Tiny, dtype: str) -> None:
    folder, _ = tiny("qwen3")
    config = Config(
        model=ModelConfig(path=str(folder), dtype=dtype, device="cpu"),
        kv=KVConfig(block_size=4, device_blocks=16, host_blocks=0),
    )
    with Pipeline(config, folder) as pipeline:
        job = pipeline.new_job(make_prompt(6, seed=1))
        pipeline.step([(job, 6)])
        pipeline.step([(job, 1)])
        assert len(job.output) == 2
        assert str(pipeline.runners[0]._tiers.device.dtype) == f"torch.{dtype}"


def test_float16_overflow_of_one_job_does_not_reach_the_next_owner_of_its_blocks(tiny: Tiny) -> None:
    folder, _ = tiny("llama")
    config = Config(
        model=ModelConfig(path=str(folder), dtype="float16", device="cpu"),
        kv=KVConfig(block_size=4, device_blocks=4, host_blocks=0),
    )
    with Pipeline(config, folder) as pipeline:
        runner = pipeline.runners[0]
        sick = pipeline.new_job(make_prompt(8, seed=1))
        embedding = runner._slice.decoder.embed_tokens.weight
        healthy = embedding[sick.prompt[0]].clone()
        embedding[sick.prompt[0]] = torch.nan
        pipeline.step([(sick, 8)])
        embedding[sick.prompt[0]] = healthy
        assert runner._tiers.device.isfinite().all()


def test_limits_that_the_scheduler_needs(tiny: Tiny) -> None:
    folder, _ = tiny("opt")
    with Pipeline(make_config(folder, stages=2), folder) as pipeline:
        for runner in pipeline.runners:
            assert runner.max_model_len == 256
            assert runner.block_bytes == 2 * 2 * 4 * 32 * 4  # layers, K and V, tokens, hidden, float32


def test_longer_than_the_models_context_is_refused(tiny: Tiny) -> None:
    folder, _ = tiny("llama")
    config = Config(model=ModelConfig(path=str(folder), max_model_len=257))
    with pytest.raises(ConfigError, match=r"model\.max_model_len: 257 .* 256"):
        Pipeline(config, folder)


def test_more_kv_than_memory_is_refused(tiny: Tiny) -> None:
    folder, _ = tiny("llama")
    with pytest.raises(KVCapacityError, match=r"kv\.device_blocks.* would fit"):
        Pipeline(make_config(folder, device_blocks=10**12), folder)


def test_embedded_model_knows_the_capital_of_france(embedded_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(embedded_model)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True
    )["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(embedded_model)
    model.generation_config.eos_token_id = None
    expected = hf_generate(model, prompt, TOKENS)
    config = Config(model=ModelConfig(device="cpu"), kv=KVConfig(device_blocks=16, host_blocks=0))
    with Pipeline(config, embedded_model) as pipeline:
        job = pipeline.new_job(prompt)
        while len(job.output) < TOKENS:
            pipeline.step([(job, job.left_to_compute)])
    assert_same_text(model, prompt, expected, job.output)
    assert "Paris" in tokenizer.decode(job.output)
