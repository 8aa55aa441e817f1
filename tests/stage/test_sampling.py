import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from services.stage.sampling import sample, uniform_of
from shared.messages import Sampling

VOCAB = 500
LOGITS = torch.randn(VOCAB, generator=torch.Generator().manual_seed(0)) * 3


def allowed_by_reference(logits: Tensor, sampling: Sampling) -> Tensor:
    """Probabilities after temperature, min_p, top_k and top_p, one token at a time."""
    probabilities = (logits.double() / sampling.temperature).softmax(-1)
    probabilities[probabilities < sampling.min_p * probabilities.max()] = 0
    probabilities /= probabilities.sum()
    order = probabilities.argsort(descending=True).tolist()
    kept = order[: sampling.top_k] if sampling.top_k > 0 else order
    mass = sum(float(probabilities[token]) for token in kept)
    nucleus: list[int] = []
    for token in kept:
        if nucleus and sum(float(probabilities[t]) for t in nucleus) >= sampling.top_p * mass:
            break
        nucleus.append(token)
    result = torch.zeros_like(probabilities)
    result[nucleus] = probabilities[nucleus]
    return result / result.sum()


def draw_many(sampling: Sampling, rows: int) -> Tensor:
    """Relative frequency of every token over `rows` positions."""
    tokens: list[int] = []
    for first in range(0, rows, 1000):
        positions = list(range(first, first + 1000))
        tokens += sample(LOGITS.expand(1000, -1), [sampling] * 1000, positions)
    return torch.bincount(torch.tensor(tokens), minlength=VOCAB) / rows


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.5, seed=3),
        Sampling(temperature=1.7, top_k=10),
        Sampling(top_p=0.8, seed=9),
        Sampling(temperature=3.0, top_p=0.95),  # its nucleus is larger than the first candidates
        Sampling(temperature=2.0, top_k=200, top_p=0.9),
        Sampling(top_k=5, top_p=0.6),
        Sampling(temperature=1.5, min_p=0.05),
        Sampling(temperature=1.5, min_p=0.05, top_k=12, top_p=0.8),
        Sampling(min_p=1.0),
    ],
    ids=str,
)
def test_frequencies_follow_the_filtered_distribution(sampling: Sampling) -> None:
    rows = 20_000
    expected = allowed_by_reference(LOGITS, sampling)
    seen = draw_many(sampling, rows)
    assert seen[expected == 0].sum() == 0
    deviation = (seen - expected).abs()
    assert (deviation <= 5 * (expected / rows).sqrt() + 2 / rows).all()
    # Chi-square over the tokens that are expected at least five times; 6 sigma.
    often = expected * rows >= 5
    chi_square = (rows * (seen - expected)[often] ** 2 / expected[often]).sum()
    freedom = int(often.sum())
    assert chi_square < freedom + 6 * (2 * freedom) ** 0.5


SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 1e-60, 1e-30, 0.3, 1.0, 5.0]),
    top_p=st.sampled_from([1e-6, 0.1, 0.5, 0.95, 1.0]),
    top_k=st.sampled_from([0, 1, 3, 127, 128, 129, 400, VOCAB, 10 * VOCAB]),
    seed=st.integers(-(2**63), 2**64),
    min_p=st.sampled_from([0.0, 0.0, 0.1, 1.0]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(SAMPLINGS, st.integers(0, 10_000)), min_size=1, max_size=8), st.integers(0, 1000))
def test_a_draw_does_not_depend_on_the_batch(rows: list[tuple[Sampling, int]], seed: int) -> None:
    logits = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(seed)) * 4
    together = sample(logits, [sampling for sampling, _ in rows], [position for _, position in rows])
    alone = [
        sample(logits[i : i + 1], [sampling], [position])[0] for i, (sampling, position) in enumerate(rows)
    ]
    assert together == alone
    for i, (sampling, _) in enumerate(rows):
        if sampling.greedy or sampling.top_k == 1 or sampling.top_p == 1e-6 or sampling.temperature <= 1e-30:
            assert together[i] == int(logits[i].argmax())


def test_candidates_are_only_a_shortcut(monkeypatch: pytest.MonkeyPatch) -> None:
    samplings = [
        Sampling(temperature=temperature, top_p=top_p, top_k=top_k)
        for temperature in (0.5, 1.0, 3.0)
        for top_p in (0.3, 0.9, 0.999)
        for top_k in (0, 40, 300)
    ]
    logits, positions = LOGITS.expand(len(samplings), -1), list(range(len(samplings)))
    whole = sample(logits, samplings, positions)
    for candidates in ((), (2,), (16, 128), (10_000,)):
        monkeypatch.setattr("services.stage.sampling._CANDIDATES", candidates)
        assert sample(logits, samplings, positions) == whole


def test_draws_are_the_inverse_of_the_cumulative_distribution() -> None:
    probabilities = torch.tensor([0.1, 0.0, 0.4, 0.3, 0.2])
    positions = list(range(200))
    tokens = sample(probabilities.log().expand(200, -1), [Sampling(seed=5)] * 200, positions)
    cumulative = probabilities.double().cumsum(-1)
    for position, token in zip(positions, tokens, strict=True):
        assert token == int((cumulative <= uniform_of(5, position) - 1e-6).sum())


def test_ends_of_the_unit_interval_never_pick_an_impossible_token(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.tensor([[-torch.inf, 0.0, 1.0, -torch.inf]])
    for uniform, token in ((0.0, 1), (1 - 2**-53, 2)):
        monkeypatch.setattr("services.stage.sampling.uniform_of", lambda *_, value=uniform: value)
        for sampling in (Sampling(), Sampling(top_k=3)):
            drawn = sample(logits, [sampling], [0])[0]
            assert drawn == token or (sampling.top_k and drawn in (1, 2))


def test_uniform_numbers_are_reproducible_and_spread() -> None:
    assert uniform_of(0, 0) == uniform_of(2**64, 0) != uniform_of(0, 1)
    assert uniform_of(1, 0) != uniform_of(0, 1)
    numbers = torch.tensor([uniform_of(seed, position) for seed in range(50) for position in range(200)])
    counts = torch.histc(numbers, 100, 0, 1)
    assert counts.min() > 50
    assert counts.max() < 150


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(top_k=2), Sampling(temperature=0.0)])
def test_logits_that_are_not_numbers_still_give_token_ids(sampling: Sampling) -> None:
    logits = torch.full((1, 5), torch.nan)
    assert sample(logits, [sampling], [0])[0] in range(5)


def test_half_precision_logits() -> None:
    logits = torch.tensor([[0.0, 5.0, 1.0]], dtype=torch.bfloat16)
    assert sample(logits, [Sampling(temperature=0.0)], [0]) == [1]
    assert sample(logits, [Sampling(top_k=1)], [0]) == [1]
