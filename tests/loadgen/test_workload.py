"""Arrivals, lengths and the search over rates."""

import numpy as np
import pytest

from loadgen.search import highest_rate
from loadgen.simulate.paper import requests_published
from loadgen.workload import lengths
from loadgen.workload.arrivals import gamma, poisson
from loadgen.workload.requests import Request, synthetic, within
from shared.errors import ConfigError

MANY = 20_000


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0])
def test_gaps_have_the_mean_and_the_variation_asked_for(cv: float) -> None:
    gaps = np.diff(gamma(MANY, 5.0, cv, 1))
    assert gaps.mean() == pytest.approx(0.2, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)


def test_poisson_is_gamma_of_one_and_zero_is_even() -> None:
    assert np.array_equal(poisson(10, 2.0, 3), gamma(10, 2.0, 1.0, 3))
    assert gamma(3, 2.0, 0.0, 3).tolist() == [0.5, 1.0, 1.5]
    with pytest.raises(ValueError, match="rate"):
        poisson(1, 0.0, 3)


def test_rates_share_their_random_numbers() -> None:
    slow, fast = (
        synthetic(lengths.named("sharegpt"), n, rate, 2.0, 7) for n, rate in ((2000, 1.0), (50, 4.0))
    )
    for a, b in zip(slow, fast, strict=False):
        assert (a.prompt, a.output) == (b.prompt, b.output)
        assert a.arrival == pytest.approx(4 * b.arrival)


@pytest.mark.parametrize("kind", ["", "-lognormal"])
@pytest.mark.parametrize(("name", "prompt", "output"), [("sharegpt", 161, 338), ("alpaca", 19, 58)])
def test_lengths_have_the_papers_means_and_limits(name: str, kind: str, prompt: int, output: int) -> None:
    drawn = lengths.named(name + kind)(MANY, 0)
    assert drawn.mean(axis=0) == pytest.approx([prompt, output], rel=0.05)
    assert drawn.min() >= 1
    assert drawn[:, 0].max() <= 1024
    assert drawn.sum(axis=1).max() <= 2048


@pytest.mark.parametrize("name", sorted(lengths.NAMED))
def test_every_shape_is_seeded(name: str) -> None:
    sampler = lengths.named(name)
    assert sampler(30, 1).shape == (30, 2)
    assert sampler(30, 1).min() >= 1
    assert np.array_equal(sampler(30, 1), sampler(30, 1))


def test_constant_lengths_and_unknown_names() -> None:
    assert lengths.named("constant:7:9")(2, 0).tolist() == [[7, 9], [7, 9]]
    for name in ("constant:7", "constant:0:1", "nonsense"):
        with pytest.raises(ConfigError, match="known are"):
            lengths.named(name)


def test_limits_drop_what_is_longer() -> None:
    items = [Request(0.0, 10, 10), Request(0.0, 11, 1), Request(0.0, 5, 16)]
    assert within(items, max_prompt=10, max_total=20) == items[:1]


@pytest.mark.parametrize("guess", [0.1, 3.0, 50.0])
def test_the_search_finds_where_latency_reaches_the_slo(guess: float) -> None:
    assert highest_rate(lambda rate: 0.02 + rate**2 / 100, 0.3, guess) == pytest.approx(28**0.5, rel=0.01)


def test_a_latency_that_never_crosses_is_an_error() -> None:
    with pytest.raises(ValueError, match="does not cross"):
        highest_rate(lambda rate: 0.1, 0.3, 1.0)


def test_number_of_requests_as_published() -> None:
    assert [requests_published(rate) for rate in (0.05, 1.0, 2.0, 30.0)] == [20, 200, 400, 400]
