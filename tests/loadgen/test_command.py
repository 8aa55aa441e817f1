"""The command line, from arguments to the JSON file."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from deploy.profile import to_json
from loadgen.simulate.command import register
from shared.costmodel import CostModel


def simulate(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    options = parser.parse_args(["simulate", *arguments])
    return options.run(options)


def result(tmp_path: Path, *arguments: str) -> Any:
    file = tmp_path / "result.json"
    assert simulate(*arguments, "--json", str(file)) == 0
    return json.loads(file.read_text())


def test_example(tmp_path: Path) -> None:
    policies = result(tmp_path, "example")["policies"]
    assert policies["skip-join"] == {"completion": {"J1": 11, "J2": 4, "J3": 5}, "mean_per_token": 3.33}


def test_run_on_synthetic_load_and_on_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("timestamp_s,input_len,output_len\n0,20,4\n1,10,3\n")
    assert result(tmp_path, "run", "--trace", str(trace))["jobs"] == 2
    synthetic = result(tmp_path, "run", "--n", "5", "--lengths", "constant:10:4", "--policy", "fcfs")
    assert (synthetic["jobs"], synthetic["slo_share"]) == (5, 1.0)


def test_a_profile_in_a_file(tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    cost = {"prefill_a": 1, "prefill_b": 0, "prefill_c": 0, "decode_a": 1, "decode_b": 0, "decode_c": 0}
    profile.write_text(json.dumps(cost))
    summary = result(tmp_path, "run", "--n", "1", "--lengths", "constant:9:5", "--model", str(profile))
    assert summary["jct"]["mean"] == pytest.approx(5.0)


def test_what_skipjoin_profile_writes_can_be_simulated(tmp_path: Path) -> None:
    profile = tmp_path / "cost.json"
    profile.write_bytes(to_json(CostModel(0, 0, 0, 2, 0, 0, samples=9)))
    summary = result(tmp_path, "run", "--n", "1", "--lengths", "constant:9:5", "--model", str(profile))
    assert summary["jct"]["mean"] == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "nonsense"], "policy 'nonsense'"),
        (["--model", "nonsense"], "model 'nonsense'"),
        (["--model", "missing.json"], "missing.json: no profile"),
        (["--trace", "missing.csv"], "missing.csv: cannot be read"),
        (["--rate", "0"], "--rate"),
    ],
)
def test_mistakes_are_explained(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate("run", *arguments) == 2
    assert message in capsys.readouterr().err


def test_one_row_of_the_paper(tmp_path: Path) -> None:
    rows = result(
        tmp_path, "paper", "--models", "opt-13b", "--lengths", "alpaca", "--policies", "fcfs",
        "--regimes", "finite", "--seeds", "1",
    )["rows"]  # fmt: skip
    assert [row["metric"] for row in rows] == ["mean", "p95"]
    assert rows[0]["anchor"] == 16.3
    assert rows[0]["ratio"] == pytest.approx(rows[0]["rate_at_slo"] / 16.3, abs=0.01)
