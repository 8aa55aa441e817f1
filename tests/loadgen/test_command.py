"""The command line, from arguments to the JSON file."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.profile import to_json
from loadgen.bench.schedule import schedule
from loadgen.bench.settings import Point, parse
from loadgen.report import results
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


# ---------------------------------------------------------------- bench

BENCHMARK: dict[str, Any] = {
    "targets": {
        "fcfs": {"set": ["scheduler.policy=fcfs", "scheduler.max_batch_size=2"]},
        "skip-join": {"set": ["scheduler.max_batch_size=2"]},
        "peer": {"url": "http://127.0.0.1:1"},
    },
    "workload": {"mix": "80% short=8:2, 20% long=16:40"},
    "rates": [0.5, 2.0],
    "requests": 60,
    "capacity": {"target": "fcfs", "requests": 30},
    "objective": {"per_token_iterations": 10},
}


def bench(tmp_path: Path, changes: dict[str, Any] | None = None, *further: str) -> int:
    file, cost = tmp_path / "bench.yaml", tmp_path / "cost.json"
    file.write_text(yaml.safe_dump(BENCHMARK | (changes or {})))
    cost.write_bytes(to_json(CostModel(0.03, 0.002, 0, 0.05, 0, 0.002, samples=9)))
    return simulate(
        "bench", str(file), "--model", str(cost), "--overhead", "0", "--out", str(tmp_path / "out"), *further
    )


def test_a_benchmarks_file_is_played_as_live_and_reported_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(tmp_path, None, "--json", str(tmp_path / "result.json")) == 0
    cells = {(cell.target, cell.load): cell for cell in results.load([tmp_path / "out"])}
    assert list(cells) == [
        (f"{name} (simulated)", load) for name in ("fcfs", "skip-join") for load in (0.5, 2.0)
    ]
    benchmark = parse(BENCHMARK, "test")
    for cell in cells.values():
        assert cell.lone_iteration_s == pytest.approx(0.052)
        assert cell.rate == pytest.approx((cell.load or 0) * (cell.runs[0].header.capacity or 0))
        talks = schedule(benchmark, Point(cell.load or 0, 60), cell.rate or 0, 0)
        assert [(record.scheduled, record.asked_output) for record in cell.records] == [
            (talk.at, talk.asks[0].output) for talk in talks
        ]
        assert all(record.output == record.asked_output for record in cell.records)
    overloaded = [cells[f"{name} (simulated)", 2.0].summary() for name in ("fcfs", "skip-join")]
    assert overloaded[1].per_token.mean < 0.5 * overloaded[0].per_token.mean
    printed = capsys.readouterr().out
    assert "skip-join (simulated)" in printed and "peer" not in printed
    assert len(json.loads((tmp_path / "result.json").read_text())["runs"]) == 4


def test_an_answer_too_long_for_the_memory_is_a_refusal_not_a_loss(tmp_path: Path) -> None:
    small = {"set": ["kv.device_blocks=2", "kv.host_blocks=2"]}
    assert bench(tmp_path, {"targets": {"small": small}, "capacity": None, "objective": {}}) == 0
    for cell in results.load([tmp_path / "out"]):
        failed = {record.kind: record.outcome for record in cell.records}
        assert failed == {"short": "ok", "long": "refused"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"targets": {"peer": {"url": "http://127.0.0.1:1"}}, "capacity": None, "objective": {}}, "targets"),
        ({"capacity": {"target": "peer"}}, "capacity.target: 'peer' is at a url"),
        ({"workload": {"conversations": "talks.csv"}}, "workload.conversations"),
        ({"targets": {"own": {"set": ["kv.device_blocks=2"]}}, "capacity": {}}, "own (simulated): takes no"),
        ({"targets": {"own": {"set": ["scheduler.policy=none"]}}, "capacity": {}}, "scheduler.policy"),
    ],
)
def test_what_cannot_be_simulated_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], message: str
) -> None:
    assert bench(tmp_path, changes) == 2
    assert message in capsys.readouterr().err
