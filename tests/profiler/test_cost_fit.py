"""The fitted cost model predicts what was measured, and never that more work takes less time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.profiler.core import CostFitter, non_negative_least_squares
from services.profiler.grid import batches
from shared.config import ProfilerConfig
from shared.costmodel import GUESS, BatchLoad, CostModel
from shared.messages import Limits

TRUE = CostModel(0.02, 1e-3, 2e-7, 0.03, 1e-6, 4e-3)


def load_of(*jobs: tuple[int, int]) -> BatchLoad:
    load = BatchLoad()
    for new, context in jobs:
        load = load.plus(new, context)
    return load


def test_known_coefficients_are_recovered_from_pure_iterations() -> None:
    fitter = CostFitter()
    loads = [load_of((n, n)) for n in (16, 64, 192, 700)]
    loads += [load_of(*[(1, context)] * jobs) for jobs in (1, 4, 16) for context in (20, 900)]
    for load in loads:
        fitter.add(load, TRUE.seconds(load))
    model = fitter.fit()
    assert model.samples == len(loads)
    for load in (*loads, load_of((300, 300)), load_of(*[(1, 400)] * 8)):
        assert model.seconds(load) == pytest.approx(TRUE.seconds(load), rel=0.02)
    assert max(fitter.errors(model)) < 0.02


def test_mixed_iterations_are_predicted_from_both_halves_and_pay_the_fixed_cost_once() -> None:
    mixed = load_of((100, 100), (1, 50), (1, 60))
    expected = max(TRUE.prefill_a, TRUE.decode_a) + 100 * 1e-3 + 100**2 * 2e-7 + 110 * 1e-6 + 2 * 4e-3
    assert TRUE.seconds(mixed) == pytest.approx(expected)


def test_what_was_not_measured_keeps_the_guess() -> None:
    fitter = CostFitter()
    fitter.add(load_of((1, 10)), 0.5)
    model = fitter.fit()
    assert model.decode(10) == pytest.approx(0.5)
    assert (model.prefill_a, model.prefill_b) == (GUESS.prefill_a, GUESS.prefill_b)


@given(st.lists(st.tuples(st.integers(2, 2000), st.floats(1e-3, 10)), min_size=1, max_size=12))
def test_no_coefficient_is_negative_whatever_was_measured(points: list[tuple[int, float]]) -> None:
    rows = np.array([[1.0, n, n * n] for n, _ in points]) / np.array([[s] for _, s in points])
    assert min(non_negative_least_squares(rows, np.ones(len(points)))) >= 0


def test_the_grid_fits_into_small_models_and_pools() -> None:
    limits = Limits(max_model_len=64, capacity=48)
    for group in batches(ProfilerConfig(), limits, "me"):
        assert group
        for job in group:
            assert len(job.prompt) + job.max_tokens <= 48
        assert sum(len(job.prompt) + job.max_tokens for job in group) <= 48


def test_a_context_too_short_for_any_measurement_gives_an_empty_grid() -> None:
    assert list(batches(ProfilerConfig(), Limits(4, 4), "me")) == []
