"""Adjusting all rows at once is the same as following the definitions one token at a time."""

from array import array

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from services.stage.penalties import adjust
from shared.messages import Sampling, TokenHistory

VOCAB = 40
IDS = st.lists(st.integers(0, VOCAB - 1), max_size=12)
SAMPLINGS = st.builds(
    Sampling,
    presence_penalty=st.sampled_from([0.0, -2.0, 0.7]),
    frequency_penalty=st.sampled_from([0.0, 1.5, -0.3]),
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.3]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100), max_size=5),
)


def packed(tokens: list[int]) -> bytes:
    return array("i", tokens).tobytes()


def by_definition(
    logits: Tensor, sampling: Sampling, prompt: list[int], output: list[int], barred: list[int]
) -> list[float]:
    result: list[float] = []
    for token, logit in enumerate(logits.tolist()):
        logit += sampling.logit_bias.get(token, 0.0)
        if token in prompt or token in output:
            logit = logit / sampling.repetition_penalty if logit > 0 else logit * sampling.repetition_penalty
        logit -= sampling.frequency_penalty * output.count(token)
        logit -= sampling.presence_penalty * (token in output)
        result.append(float("-inf") if token in barred else logit)
    return result


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(SAMPLINGS, IDS, IDS, IDS), min_size=1, max_size=5), st.integers(0, 1000))
def test_every_row_is_adjusted_by_the_definitions(
    rows: list[tuple[Sampling, list[int], list[int], list[int]]], seed: int
) -> None:
    logits = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(seed)) * 4
    before = logits.clone()
    histories = [
        TokenHistory(packed(output), packed(prompt + output), barred) for _, prompt, output, barred in rows
    ]
    adjusted = adjust(logits, [sampling for sampling, *_ in rows], histories)
    for row, (sampling, prompt, output, barred) in enumerate(rows):
        expected = torch.tensor(by_definition(logits[row], sampling, prompt, output, barred))
        torch.testing.assert_close(adjusted[row], expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(logits, before), "log-probabilities are read from them afterwards"


def test_a_batch_that_asks_for_nothing_is_not_even_copied() -> None:
    logits = torch.randn(2, VOCAB)
    assert adjust(logits, [Sampling(), Sampling(temperature=0.0, logprobs=5)], [None, None]) is logits


def test_half_precision_is_adjusted_in_single() -> None:
    logits = torch.zeros(1, VOCAB, dtype=torch.bfloat16)
    adjusted = adjust(logits, [Sampling(logit_bias={3: 0.001})], [None])
    assert adjusted.dtype is torch.float32 and abs(float(adjusted[0, 3]) - 0.001) < 1e-9


def test_a_tiny_penalty_makes_no_infinity() -> None:
    logits = torch.full((1, VOCAB), 100.0)
    sampling = Sampling(repetition_penalty=5e-324)
    adjusted = adjust(logits, [sampling], [TokenHistory(seen=packed([1, 2]))])
    assert adjusted.isfinite().all() and int(adjusted.argmax()) in (1, 2)
