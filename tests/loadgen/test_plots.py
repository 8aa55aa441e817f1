"""PNGs of the studies; without matplotlib, a remedy instead of a traceback."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from loadgen.simulate import plots
from loadgen.simulate.ablation import Point
from loadgen.simulate.grid import POLICIES, Cell, Grid
from loadgen.simulate.grid import Point as GridPoint
from loadgen.simulate.ledger import JobRecord
from loadgen.simulate.paper import SYSTEMS, Row
from tests.loadgen.test_command import simulate

PNG = b"\x89PNG\r\n"


def test_run(tmp_path: Path) -> None:
    file = tmp_path / "run.png"
    assert simulate("run", "--n", "8", "--lengths", "constant:10:4", "--plot", str(file)) == 0
    assert file.read_bytes().startswith(PNG)


def test_the_tables_of_the_other_studies(tmp_path: Path) -> None:
    rows = [Row("opt-13b", "alpaca", "mean", name, 5.0, None, None, "finite", 1.0) for name in SYSTEMS]
    rows.append(Row("opt-66b", "alpaca", "p95", "fcfs", 9.0, 10.0, 0.9, "steady", 1.0))
    plots.paper(tmp_path / "paper.png", rows)
    modes = [
        Point("swap mode", mode, "skip-join", mode, rate, rate, 1.0, 0.0, 0)
        for rate in (1.0, 9.0)
        for mode in ("reactive", "recompute")
    ]
    ratios = [Point("input/output", "4", name, "reactive", 1.0, 0.1, 1.0, 0.0, 0) for name in POLICIES]
    plots.ablation(tmp_path / "ablation.png", modes + ratios)
    points = [
        GridPoint(Cell("bimodal", cv, load, "fcfs"), 1.0, load, 1.0, 1.0, 1.0)
        for cv in (1.0, 8.0)
        for load in (0.5, 1.2)
    ]
    plots.grid(tmp_path / "grid.png", Grid("opt-13b", 10, 1, 1.0, points, []))
    for name in ("paper", "ablation", "grid"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(PNG), name


def test_a_folder_that_does_not_exist_is_noticed_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate("ablation", "--plot", str(tmp_path / "none" / "a.png")) == 2
    captured = capsys.readouterr()
    assert "there is no folder" in captured.err
    assert not captured.out


def test_without_matplotlib_the_remedy_is_named_before_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    assert simulate("paper", "--plot", "paper.png") == 2
    captured = capsys.readouterr()
    assert "--plot paper.png: needs matplotlib" in captured.err
    assert "skipjoin[plots]" in captured.err
    assert not captured.out


def test_every_policy_that_studies_show_has_a_colour_of_its_own() -> None:
    shown = {*POLICIES, *SYSTEMS}
    assert shown <= plots.COLOURS.keys()
    assert len({*plots.COLOURS.values(), plots.OTHER}) == len(plots.COLOURS) + 1


def test_unfinished_jobs_rise_with_arrivals_and_fall_with_ends() -> None:
    records = [JobRecord(0.0, 5, 1, [3.0]), JobRecord(1.0, 5, 2, [1.5, 2.0])]
    times, unfinished = plots._unfinished(records)
    assert (times.tolist(), unfinished.tolist()) == ([0.0, 1.0, 2.0, 3.0], [1, 2, 1, 0])
