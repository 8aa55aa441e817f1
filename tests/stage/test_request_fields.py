"""Penalties, min_tokens and log-probabilities against transformers, through steps, swaps, recomputation."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from shared.messages import Sampling

from .models import hf_generate, make_prompt
from .pipeline import Job, Pipeline, make_config

Tiny = Callable[[str], tuple[Path, torch.nn.Module]]
TOKENS = 20


def finish(pipeline: Pipeline, *jobs: Job, tokens: int = TOKENS) -> None:
    while unfinished := [job for job in jobs if len(job.output) < tokens]:
        pipeline.step([(job, job.left_to_compute) for job in unfinished])


@torch.no_grad()
def raw_logprobs(model: torch.nn.Module, job: Job) -> torch.Tensor:
    """[output, vocab] of the model itself, for the tokens that the job has drawn."""
    logits = model(torch.tensor([job.tokens])).logits[0, len(job.prompt) - 1 : -1]
    return logits.float().log_softmax(-1)


def assert_logprobs(model: torch.nn.Module, job: Job) -> None:
    expected = raw_logprobs(model, job)
    assert len(job.logprobs) == len(job.output)
    for place, (token, scored) in enumerate(zip(job.output, job.logprobs, strict=True)):
        assert abs(scored.logprob - float(expected[place, token])) < 1e-4
        assert len(scored.top_ids) == job.sampling.logprobs
        best = expected[place].topk(len(scored.top_ids)).values
        torch.testing.assert_close(torch.tensor(scored.top_logprobs), best, atol=1e-4, rtol=0)
        torch.testing.assert_close(expected[place, scored.top_ids], best, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("ranks", "stages"), [(1, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("family", ["llama", "opt"])
def test_repetition_penalty_and_logprobs_equal_transformers(
    tiny: Tiny, family: str, ranks: int, stages: int
) -> None:
    folder, model = tiny(family)
    with Pipeline(make_config(folder, stages=stages, ranks=ranks), folder) as pipeline:
        fields = {"temperature": 0.0, "logprobs": 3}
        penalised = pipeline.new_job(make_prompt(17, seed=1), Sampling(repetition_penalty=1.4, **fields))
        rewarded = pipeline.new_job(make_prompt(9, seed=2), Sampling(repetition_penalty=0.8, **fields))
        plain = pipeline.new_job(make_prompt(5, seed=3))
        finish(pipeline, penalised, rewarded, plain, tokens=6)
        out, freed = pipeline.swap_out(penalised)
        pipeline.step([(plain, 1)], [out])
        pipeline.wait(out)
        pipeline.free_device += freed
        back = pipeline.swap_in(penalised)
        pipeline.step([(plain, 1)], [back])
        pipeline.wait(back)
        rewarded.computed = 0  # as after a drop, or on a stage that was restarted
        finish(pipeline, penalised, rewarded, plain)
    for job in (penalised, rewarded):
        expected = hf_generate(model, job.prompt, TOKENS, repetition_penalty=job.sampling.repetition_penalty)
        assert job.output == expected != hf_generate(model, job.prompt, TOKENS)
        assert_logprobs(model, job)
    assert plain.output[:TOKENS] == hf_generate(model, plain.prompt, TOKENS)


def test_min_tokens_equals_transformers(tiny: Tiny) -> None:
    folder, model = tiny("llama")
    prompt = make_prompt(8, seed=4)
    free = hf_generate(model, prompt, TOKENS)
    ends = [free[0], free[3]]
    with Pipeline(make_config(folder), folder) as pipeline:
        job = pipeline.new_job(prompt)
        job.min_tokens, job.barred = 7, ends
        finish(pipeline, job)
    expected = hf_generate(model, prompt, TOKENS, min_new_tokens=7, eos_token_id=ends)
    assert job.output[: len(expected)] == expected
    assert not set(job.output[:7]) & set(ends)


def test_frequency_and_presence_count_output_alone(tiny: Tiny) -> None:
    folder, model = tiny("llama")
    prompt = make_prompt(12, seed=5)
    sampling = Sampling(temperature=0.0, frequency_penalty=1.1, presence_penalty=0.9)
    with Pipeline(make_config(folder), folder) as pipeline:
        job = pipeline.new_job(prompt, sampling)
        finish(pipeline, job)
    scores = raw_logprobs(model, job)
    for place, token in enumerate(job.output):
        before = torch.bincount(torch.tensor(job.output[:place], dtype=torch.long), minlength=scores.shape[1])
        assert token == int((scores[place] - 1.1 * before - 0.9 * (before > 0)).argmax())
    assert job.output != hf_generate(model, prompt, TOKENS)


def test_logit_bias_decides_and_leaves_the_reported_distribution_alone(tiny: Tiny) -> None:
    folder, model = tiny("llama")
    sampling = Sampling(temperature=0.7, logit_bias={9: 100.0, 10: -100.0}, logprobs=0)
    with Pipeline(make_config(folder), folder) as pipeline:
        job = pipeline.new_job(make_prompt(5, seed=6), sampling)
        finish(pipeline, job, tokens=4)
    assert job.output == [9, 9, 9, 9]
    assert_logprobs(model, job)


def test_a_penalised_draw_depends_on_the_seed_and_not_on_steps_or_neighbours(tiny: Tiny) -> None:
    folder, _ = tiny("llama")
    sampling = Sampling(seed=3, presence_penalty=1.0, repetition_penalty=1.2, min_p=0.01)

    def generate(*, recompute: bool) -> list[int]:
        with Pipeline(make_config(folder), folder) as pipeline:
            job = pipeline.new_job(make_prompt(9, seed=7), sampling)
            others = [pipeline.new_job(make_prompt(6, seed=n), Sampling(seed=n)) for n in range(3)]
            finish(pipeline, job, *(others if recompute else []), tokens=8)
            if recompute:
                job.computed = 0
            finish(pipeline, job)
            return job.output

    assert generate(recompute=True) == generate(recompute=False)
