"""Errors are reported by kind, of predictions made beforehand; a model of another machine is found out."""

import msgspec
import pytest

from services.profiler.accuracy import RecentErrors, disagreement, quantile
from services.profiler.core import Kind, Measurement
from shared.costmodel import CostModel
from tests.profiler.measured import TRUE, grid_loads, load_of, measured, traffic


def scaled(measurements: list[Measurement], factor: float) -> list[Measurement]:
    return [Measurement(item.load, factor * item.seconds) for item in measurements]


def test_quantiles_are_values_by_nearest_rank() -> None:
    values = [float(value) for value in range(1, 21)]
    assert [quantile(values, fraction) for fraction in (0.5, 0.95, 1.0)] == [10, 19, 20]
    assert quantile([7.0], 0.95) == 7


def test_errors_are_kept_apart_by_kind_mixed_ones_included() -> None:
    errors = RecentErrors()
    for load, factor in ((load_of((64, 64)), 2.0), (load_of((1, 9)), 1.0), (load_of((64, 64), (1, 9)), 0.5)):
        errors.note(TRUE, Measurement(load, factor * TRUE.seconds(load)))
    assert {(kind, fraction): pytest.approx(value) for kind, fraction, value in errors.quantiles()} == {
        (Kind.PREFILL, 0.5): 0.5, (Kind.PREFILL, 0.95): 0.5,
        (Kind.DECODE, 0.5): 0.0, (Kind.DECODE, 0.95): 0.0,
        (Kind.MIXED, 0.5): 1.0, (Kind.MIXED, 0.95): 1.0,
    }  # fmt: skip


def test_kinds_that_did_not_occur_and_empty_iterations_are_not_reported() -> None:
    errors = RecentErrors()
    errors.note(TRUE, Measurement(load_of(), 0.1))
    assert list(errors.quantiles()) == []


def test_a_profile_of_a_slower_or_faster_machine_disagrees_by_its_factor() -> None:
    same = list(traffic(seed=1, count=90, noise=0.05, outliers=0.1))
    assert disagreement(TRUE, same) < 1.1
    assert disagreement(TRUE, scaled(measured(grid_loads()), 3.0)) == pytest.approx(3)
    assert disagreement(TRUE, scaled(measured(grid_loads()), 1 / 3)) == pytest.approx(3)


def test_one_kind_that_disagrees_is_enough_but_two_iterations_are_not() -> None:
    model: CostModel = msgspec.structs.replace(TRUE, prefill_a=0.0, prefill_b=TRUE.prefill_b / 10)
    assert disagreement(model, measured(grid_loads())) > 5
    assert disagreement(model, measured([load_of((500, 500))] * 2)) == 1
    assert disagreement(CostModel(0, 0, 0, 0, 0, 0), measured(grid_loads())) == float("inf")
