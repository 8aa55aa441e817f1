"""The fitted cost model predicts what was measured, and never that more work takes less time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.profiler.core import HALF_LIFE, RECENT, CostFitter, Measurement, non_negative_least_squares
from shared.costmodel import GUESS, BatchLoad, CostModel
from tests.profiler.measured import TRUE, grid_loads, load_of, measured, traffic

UNSEEN = (
    load_of((300, 300)),
    load_of((600, 600)),
    load_of(*[(1, 400)] * 8),
    load_of((150, 150), (1, 300), (1, 80)),
)


def assert_predicts(model: CostModel, loads: tuple[BatchLoad, ...], true: CostModel, rel: float) -> None:
    for load in loads:
        assert model.seconds(load) == pytest.approx(true.seconds(load), rel=rel), load


def test_known_coefficients_are_recovered_from_the_grid() -> None:
    model = CostFitter(measured(grid_loads())).fit()
    assert model.samples == len(grid_loads())
    assert_predicts(model, (*grid_loads(), *UNSEEN), TRUE, rel=1e-6)


@pytest.mark.parametrize("true", [TRUE, CostModel(0.05, 1e-3, 2e-7, 0.02, 1e-5, 4e-3)])
def test_mixed_iterations_alone_teach_whichever_constant_is_the_larger(true: CostModel) -> None:
    """A grid of another machine, then only mixed iterations of this one."""
    fitter = CostFitter(measured(grid_loads(), CostModel(0.1, 2e-3, 4e-7, 0.03, 0, 0)))
    for measurement in traffic(seed=1, count=3 * RECENT, model=true, noise=0.02):
        if measurement.load.prefill_tokens and measurement.load.decode_jobs:
            fitter.add(measurement)
    assert_predicts(fitter.fit(), UNSEEN[3:], true, rel=0.05)


def test_noise_averages_out() -> None:
    fitter = CostFitter(measured(grid_loads()))
    for measurement in traffic(seed=1, count=900, noise=0.1):
        fitter.add(measurement)
    assert_predicts(fitter.fit(), UNSEEN, TRUE, rel=0.05)


@pytest.mark.parametrize("seed", range(4))
def test_one_iteration_in_ten_disturbed_by_foreign_load_does_not_bend_the_model(seed: int) -> None:
    fitter = CostFitter(measured(grid_loads()))
    for measurement in traffic(seed, count=900, noise=0.05, outliers=0.1):
        fitter.add(measurement)
    assert_predicts(fitter.fit(), UNSEEN, TRUE, rel=0.05)


def test_outliers_in_the_grid_itself_do_not_bend_the_first_model() -> None:
    grid = measured(grid_loads())
    for position in (1, 10):
        grid[position] = Measurement(grid[position].load, 3 * grid[position].seconds)
    assert_predicts(CostFitter(grid).fit(), UNSEEN, TRUE, rel=0.1)


def test_old_samples_age_out_when_the_machine_becomes_slower() -> None:
    slower = CostModel(0.04, 2e-3, 4e-7, 0.06, 2e-6, 8e-3)
    fitter = CostFitter(measured(grid_loads()))
    for measurement in traffic(seed=1, count=900):
        fitter.add(measurement)
    for measurement in traffic(seed=2, count=3 * 3 * HALF_LIFE, model=slower):
        fitter.add(measurement)
    assert_predicts(fitter.fit(), UNSEEN, slower, rel=0.05)


def test_sizes_that_the_traffic_lacks_are_still_predicted_from_the_grid() -> None:
    fitter = CostFitter(measured(grid_loads()))
    for _ in range(2 * RECENT):
        fitter.add(Measurement(load_of((1, 50)), TRUE.decode(50)))
    assert_predicts(fitter.fit(), UNSEEN, TRUE, rel=0.02)


def test_mixed_iterations_are_predicted_from_both_halves_and_pay_the_fixed_cost_once() -> None:
    mixed = load_of((100, 100), (1, 50), (1, 60))
    expected = max(TRUE.prefill_a, TRUE.decode_a) + 100 * 1e-3 + 100**2 * 2e-7 + 110 * 1e-6 + 2 * 4e-3
    assert TRUE.seconds(mixed) == pytest.approx(expected)


def test_what_was_not_measured_keeps_the_guess() -> None:
    fitter = CostFitter()
    assert fitter.fit() == GUESS
    fitter.add(Measurement(load_of((20, 20), (1, 10)), 0.7))  # says nothing before its halves are known
    fitter.add(Measurement(load_of((1, 10)), 0.5))
    model = fitter.fit()
    assert model.decode(10) == pytest.approx(0.5)
    assert (model.prefill_a, model.prefill_b) == (GUESS.prefill_a, GUESS.prefill_b)


@given(st.lists(st.tuples(st.integers(2, 2000), st.floats(1e-3, 10)), min_size=1, max_size=12))
def test_no_coefficient_is_negative_whatever_was_measured(points: list[tuple[int, float]]) -> None:
    rows = np.array([[1.0, n, n * n] for n, _ in points]) / np.array([[s] for _, s in points])
    assert min(non_negative_least_squares(rows, np.ones(len(points)))) >= 0
