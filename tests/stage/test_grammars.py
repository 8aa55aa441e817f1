"""Masks against brute force, and the same whatever a stage remembers."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from services.gateway.structured.schemas import json_rule
from services.stage.grammars import Grammars, Masks, UnknownGrammar
from services.stage.sampling import sample
from shared.ids import JobId, StepId
from shared.messages import DefineGrammar, Grammar, GrammarState, Sampling, StepJob, StepPlan

from .grammar_tokens import ANSWERS, END, GRAMMAR, allowed_by_brute_force, token_bytes, write_tokenizer
from .models import VOCAB, hf_generate, make_prompt
from .pipeline import Job, Pipeline, make_config

Tiny = Callable[[str], tuple[Path, torch.nn.Module]]
GREEDY = Sampling(temperature=0.0)
_OPTIONAL = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(700)}}
TOO_COMPLEX = Grammar(f"start: {json_rule(_OPTIONAL, strict=True)}", [END])
"""Each of 700 properties may follow the opening brace."""


def packed(output: Sequence[int]) -> bytes:
    return array("i", output).tobytes()


@pytest.fixture
def grammars(tmp_path: Path) -> Iterator[Grammars]:
    write_tokenizer(tmp_path)
    made = Grammars(tmp_path, VOCAB, batch=4)
    made.define(DefineGrammar(1, GRAMMAR))
    yield made
    made.close()


def masks(grammars: Grammars, *states: GrammarState | None, first: int = 1) -> Masks:
    """Of jobs `first`, `first` + 1, ... in one step."""
    jobs = [StepJob(JobId(first + i), [5], 0, b"", GREEDY, grammar=state) for i, state in enumerate(states)]
    pending = grammars.begin(StepPlan(StepId(1), jobs))
    assert pending is not None
    return pending.result()


def allowed(
    grammars: Grammars, output: Sequence[int], *, job: int = 1, barred: Sequence[int] = ()
) -> list[int]:
    found = masks(grammars, GrammarState(1, packed(output), list(barred)), first=job)
    assert found.refused == [None]
    return np.flatnonzero(found.allowed[0]).tolist()


def every_output() -> list[list[int]]:
    """All ways to write all answers."""
    found: list[list[int]] = []
    unfinished: list[list[int]] = [[]]
    while unfinished:
        output = unfinished.pop()
        found.append(output)
        unfinished += [[*output, token] for token in allowed_by_brute_force(output) if token != END]
    return found


def test_masks_equal_brute_force_in_any_order_of_steps(grammars: Grammars) -> None:
    outputs = every_output()
    assert len(outputs) > 50
    for output in outputs:  # deepest first and back again: most steps cannot go on from the one before
        assert allowed(grammars, output) == allowed_by_brute_force(output)


def test_a_kept_matcher_a_replay_and_a_repeated_step_agree(grammars: Grammars) -> None:
    longest = max(every_output(), key=len)
    for length in range(len(longest) + 1):
        output = longest[:length]
        assert allowed(grammars, output, job=1) == allowed(grammars, output, job=100 + length)
        assert allowed(grammars, output, job=1) == allowed_by_brute_force(output)  # drawn twice


def test_more_jobs_than_matchers_are_kept(grammars: Grammars) -> None:
    outputs = every_output()[:20]
    for _ in range(2):
        for job in range(300):
            output = outputs[job % len(outputs)]
            assert allowed(grammars, output, job=job) == allowed_by_brute_force(output)


def test_draws_equal_a_loop_over_brute_force(grammars: Grammars) -> None:
    """Rows with and without a grammar in one batch, greedy and sampled."""
    outputs = every_output()[:24]
    states = [GrammarState(1, packed(output)) if row % 3 else None for row, output in enumerate(outputs)]
    found = masks(grammars, *states)
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(len(outputs), VOCAB, generator=generator) * 3
    samplings = [GREEDY if row % 2 else Sampling(seed=row, top_k=row % 4) for row in range(len(outputs))]
    expected = logits.clone()
    for row, output in enumerate(outputs):
        if states[row] is not None:
            allowed_here = allowed_by_brute_force(output)
            for token in range(VOCAB):
                if token not in allowed_here:
                    expected[row, token] = -torch.inf
    positions = list(range(len(outputs)))
    before = logits.clone()
    assert torch.equal(found.apply(logits), expected) and torch.equal(logits, before)
    tokens = sample(found.apply(logits), samplings, positions)
    assert tokens == [
        sample(expected[row : row + 1], samplings[row : row + 1], positions[row : row + 1])[0]
        for row in positions
    ]


def test_bars_hold_until_only_the_end_is_left(grammars: Grammars) -> None:
    table = {len(output): output for output in every_output()}
    green = next(o for o in table.values() if END not in allowed_by_brute_force(o) and o)
    assert allowed(grammars, green, barred=[END]) == allowed_by_brute_force(green)
    whole = next(o for o in every_output() if allowed_by_brute_force(o) == [END])
    assert allowed(grammars, whole, barred=[END]) == [END]


def test_a_grammar_that_is_too_much_is_refused_and_its_neighbours_are_not(grammars: Grammars) -> None:
    grammars.define(DefineGrammar(2, TOO_COMPLEX))
    brace = 3 + ord("{") - 0x20
    state = GrammarState(2, packed([brace]))
    found = masks(grammars, state, GrammarState(1), None)
    assert found.refused[1] is None and "row" in (found.refused[0] or "")
    assert found.refusals(3) == [found.refused[0], None, None]
    assert found.allowed[0].any()  # a token must be drawn, though nobody gets it
    assert np.flatnonzero(found.allowed[1]).tolist() == allowed_by_brute_force([])


def test_tokens_that_the_grammar_does_not_allow_are_refused(grammars: Grammars) -> None:
    found = masks(grammars, GrammarState(1, packed([6, 6])))
    assert found.refused[0]


def test_what_is_not_defined_in_this_epoch_is_unknown(grammars: Grammars) -> None:
    with pytest.raises(UnknownGrammar):
        masks(grammars, GrammarState(7))
    allowed(grammars, [])
    grammars.forget([1])
    with pytest.raises(UnknownGrammar):
        masks(grammars, GrammarState(1))
    grammars.define(DefineGrammar(1, GRAMMAR))
    allowed(grammars, [])
    grammars.reset()
    with pytest.raises(UnknownGrammar):
        masks(grammars, GrammarState(1))


def finish(pipeline: Pipeline, *jobs: Job) -> None:
    while unfinished := [job for job in jobs if END not in job.output and len(job.output) < 24]:
        pipeline.step([(job, job.left_to_compute) for job in unfinished])


@pytest.mark.parametrize("stages", [1, 2])
def test_output_equals_transformers_through_swaps_and_recomputation(tiny: Tiny, stages: int) -> None:
    folder, model = tiny("llama")
    write_tokenizer(folder)
    prompts = [make_prompt(5 + n, seed=20 + n) for n in range(5)]
    with Pipeline(make_config(folder, stages=stages), folder) as pipeline:
        pipeline.define(DefineGrammar(1, GRAMMAR))
        jobs = [pipeline.new_job(prompt) for prompt in prompts]
        for job in jobs[1:]:
            job.grammar_id = 1
        pipeline.step([(job, job.left_to_compute) for job in jobs])
        out, freed = pipeline.swap_out(jobs[1])
        pipeline.step([(jobs[0], 1), (jobs[2], 1)], [out])
        pipeline.wait(out)
        pipeline.free_device += freed
        back = pipeline.swap_in(jobs[1])
        pipeline.step([(jobs[0], 1)], [back])
        pipeline.wait(back)
        jobs[2].computed = 0  # dropped
        for runner in pipeline.runners:
            runner.reset()  # a new epoch: nothing is remembered
        pipeline.define(DefineGrammar(1, GRAMMAR))
        finish(pipeline, *jobs)

    for job in jobs[1:]:
        start = len(job.prompt)
        expected = hf_generate(
            model,
            job.prompt,
            24,
            eos_token_id=[END],
            prefix_allowed_tokens_fn=lambda _, ids, start=start: allowed_by_brute_force(ids[start:].tolist()),
        )
        assert job.output == expected
        assert b"".join(token_bytes()[token] for token in job.output) in ANSWERS
    assert jobs[0].output == hf_generate(model, jobs[0].prompt, len(jobs[0].output))


def test_a_refused_job_is_told_beside_the_tokens_of_the_others(tiny: Tiny) -> None:
    folder, model = tiny("llama")
    write_tokenizer(folder)
    with Pipeline(make_config(folder), folder) as pipeline:
        pipeline.define(DefineGrammar(3, replace(GRAMMAR, source="start: undefined_rule")))
        plain, refused = pipeline.new_job(make_prompt(5, seed=1)), pipeline.new_job(make_prompt(6, seed=2))
        refused.grammar_id = 3
        (output,) = pipeline.step([(plain, 5), (refused, 6)])
        assert output.refused[0] is None and "undefined_rule" in (output.refused[1] or "")
    assert plain.output == hf_generate(model, plain.prompt, 1)
