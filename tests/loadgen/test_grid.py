"""The grid: its arithmetic, and that parts of it add up to the whole."""

import json
from pathlib import Path
from typing import Any

import pytest

from loadgen.simulate import grid
from loadgen.simulate.capacity import sustained
from loadgen.simulate.models import MODELS
from loadgen.simulate.scenario import Scenario
from loadgen.workload.lengths import named
from tests.loadgen.test_command import result, simulate

SMALL = ("grid", "--lengths", "bimodal", "--cv", "1", "--loads", "1.2", "--n", "30", "--seeds", "1")


def point(policy: str, mean: float, load: float = 1.0) -> grid.Point:
    return grid.Point(grid.Cell("bimodal", 1.0, load, policy), 2.0, mean, 0.0, 0.0, 0.0)


def test_ratios_are_taken_within_a_row() -> None:
    points = [point("fcfs", 2.0), point("srpt", 1.0), point("fcfs", 4.0, 1.2), point("srpt", 5.0, 1.2)]
    assert [grid.ratio(each, points) for each in points] == [1.0, 0.5, 1.0, 1.25]
    assert grid.worst("srpt", points) == (1.25, points[3])
    assert grid.ratio(point("srpt", 1.0, load=0.5), points) is None
    assert grid.worst("mlfq", points) is None


def test_distance_to_srpt_is_taken_with_the_same_lengths() -> None:
    limits = [grid.Limit("uniform", "srpt", 9.0), grid.Limit("bimodal", "srpt", 4.0)]
    assert grid.distance(grid.Limit("bimodal", "mlfq", 3.0), limits) == 0.75
    assert grid.distance(grid.Limit("zipf", "mlfq", 3.0), limits) is None


def test_load_is_relative_to_the_capacity_and_preemption_helps_mixed_lengths() -> None:
    model = MODELS["opt-13b"]
    study = grid.Study(Scenario(model), count=120, seeds=1, starvation_s=None)
    fcfs, srpt = (study.point(grid.Cell("bimodal", 1.0, 1.2, policy)) for policy in ("fcfs", "srpt"))
    assert fcfs.rate == srpt.rate == pytest.approx(1.2 * sustained(model, named("bimodal")))
    assert srpt.mean < 0.7 * fcfs.mean


def test_a_point_is_the_mean_over_the_seeds() -> None:
    cell = grid.Cell("bimodal", 4.0, 1.2, "fcfs")
    one, two = (grid.Study(Scenario(MODELS["opt-13b"]), 30, seeds, None).point(cell).mean for seeds in (1, 2))
    assert one != pytest.approx(two)


def test_the_limit_is_where_the_slo_is_reached_and_srpt_has_one_too() -> None:
    """All jobs alike, batch of two: after the time of 100 requests at the capacity c, a rate r has a queue of
    100 (r/c - 1), and the mean job has waited for half of it: 0.3 s for each of its 60 tokens at r = 1.6 c.
    """
    model = MODELS["opt-13b"]
    study = grid.Study(Scenario(model, batch=2), 100, 1, None)
    fcfs, srpt = (study.limit("constant:20:60", policy) for policy in ("fcfs", "srpt"))
    assert fcfs.rate == pytest.approx(1.6 * sustained(model, named("constant:20:60"), batch=2), rel=0.15)
    assert srpt.rate == pytest.approx(fcfs.rate, rel=0.05), "nobody can gain"


def test_parts_make_the_whole(tmp_path: Path) -> None:
    whole = result(tmp_path, *SMALL, "--no-limits", "--policies", "fcfs", "srpt")
    (tmp_path / "result.json").unlink()
    for policy in ("fcfs", "srpt"):
        parts = result(tmp_path, *SMALL, "--no-limits", "--resume", "--policies", policy)
    assert parts == whole


def test_what_is_kept_is_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = result(tmp_path, *SMALL, "--no-limits", "--policies", "fcfs")
    first["points"][0]["mean"] = 123.0
    file = tmp_path / "result.json"
    file.write_text(json.dumps(first))
    again: Any = result(tmp_path, *SMALL, "--no-limits", "--policies", "fcfs", "--resume")
    assert again == first
    assert "| 123.0000 |" in capsys.readouterr().out


def test_parts_of_other_settings_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    result(tmp_path, *SMALL, "--no-limits", "--policies", "fcfs")
    assert simulate(*SMALL, "--n", "31", "--resume", "--json", str(file)) == 2
    assert "count is 30 there and 31 now" in capsys.readouterr().err
    file.write_text("[]")
    assert simulate(*SMALL, "--resume", "--json", str(file)) == 2
    assert "no grid" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--n", "0"), "--n 0"),
        (("--seeds", "0"), "--seeds 0"),
        (("--cv", "-1"), "--cv -1.0"),
        (("--loads", "0"), "--loads 0.0"),
        (("--resume",), "--resume needs --json"),
    ],
)
def test_mistakes_name_the_option_and_the_value(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate("grid", *arguments) == 2
    assert message in capsys.readouterr().err
