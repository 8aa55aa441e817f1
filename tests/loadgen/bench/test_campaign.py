"""Whole benchmarks against a stub, from the command line to the report."""

import argparse
import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from loadgen.bench import command, search
from loadgen.bench.campaign import seconds, stays
from loadgen.bench.record import Run, read
from loadgen.bench.settings import Benchmark, parse
from loadgen.report import command as report
from loadgen.stub_server import Script, StubServer, at_once, served
from shared.errors import ConfigError

SKEWED: dict[str, Any] = {"mix": "80% short=8:2, 20% long=16:6"}


@pytest.fixture
def serve() -> Iterator[Callable[[Script], str]]:
    """Starts a stub beside the test, and gives its URL: the command has an event loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    contexts: list[Any] = []

    def start(script: Script = at_once) -> str:
        context = served(StubServer(script))
        contexts.append(context)
        return asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result(10)

    yield start
    for context in contexts:
        asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def skipjoin(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    command.register(commands)
    report.register(commands)
    options = parser.parse_args(arguments)
    return options.run(options)


def test_bench_writes_what_report_reads(
    serve: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    status = skipjoin(
        "bench", serve(), "--mix", SKEWED["mix"], "--rate", "200,400", "--requests", "30", "--out", str(out),
        "--slo", "ttft=5,tpot=5", "--tenants", "50% a, 50% b",
    )  # fmt: skip
    assert status == 0
    assert "| server | 200 | 30 | 0 |" in capsys.readouterr().out
    first, second = (read(out / f"server-{place}-0.jsonl") for place in (0, 1))
    assert [record.asked_output for record in first.records] == [
        record.asked_output for record in second.records
    ]
    assert {record.tenant for record in first.records} == {"a", "b"}
    assert first.header.server["prompts_exact"] is True
    again = parse(yaml.safe_load((out / "benchmark.yaml").read_text()), "again")
    assert again == parse(first.header.benchmark, "header")
    assert (
        skipjoin("report", str(out), "--html", str(tmp_path / "r.html"), "--png", str(tmp_path / "png")) == 0
    )
    printed = capsys.readouterr().out
    assert "goodput, req/s" in printed
    assert "worst ÷ best tenant" in printed
    assert (tmp_path / "r.html").stat().st_size > 10_000
    assert (tmp_path / "png" / "over-rate.png").read_bytes().startswith(b"\x89PNG")


def test_compare_measures_the_capacity_and_takes_turns(
    serve: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "compare.yaml"
    tree = {
        "targets": {"a": {"url": serve()}, "b": {"url": serve() + "/v1"}},
        "workload": SKEWED,
        "rates": [0.02, {"rate": 0.04, "requests": 25}],
        "requests": 15,
        "repeats": 2,
        "capacity": {"target": "b", "requests": 20},
        "objective": {"per_token_iterations": 1e6},
    }
    config.write_text(yaml.safe_dump(tree))
    out = tmp_path / "out"
    assert skipjoin("compare", "--config", str(config), "--out", str(out)) == 0
    printed = capsys.readouterr().out
    assert "b, 0.04 of capacity against a" in printed
    assert "| JCT, s, mean | short |" in printed
    runs = {path.stem: read(path) for path in out.glob("*.jsonl")}
    assert len(runs) == 8
    header = runs["a-1-1"].header
    assert header.capacity is not None and header.rate == pytest.approx(0.04 * header.capacity)
    assert len(runs["a-1-1"].records) == 25
    for name in ("0-0", "0-1", "1-0", "1-1"):
        one, other = (
            [(record.scheduled, record.asked_prompt) for record in runs[f"{side}-{name}"].records]
            for side in "ab"
        )
        assert one == other


def test_ctrl_c_ends_the_run_and_keeps_it(
    serve: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = 0

    async def script(body: dict[str, Any], send: Any) -> None:
        nonlocal asked
        if body["max_tokens"] == 77:  # of the workload; all else is the probe's
            asked += 1
            if asked == 5:
                os.kill(os.getpid(), signal.SIGINT)
            if asked > 2:
                await asyncio.Event().wait()
        await at_once(body, send)

    out = tmp_path / "out"
    arguments = ("--mix", "8:77", "--rate", "100,200", "--requests", "50", "--out", str(out))
    assert skipjoin("bench", serve(script), *arguments) == command.INTERRUPTED
    assert [path.name for path in out.glob("*.jsonl")] == ["server-0-0.jsonl"]
    run = read(out / "server-0-0.jsonl")
    assert run.end.aborted
    assert {record.outcome for record in run.records} == {"ok", "aborted"}
    assert "stopped before its end" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_configuration_that_does_not_start_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ("--own", "a:nonsense.key=1", "--own", "b:")
    assert skipjoin("compare", *own, "--mix", "8:2", "--out", str(tmp_path)) == 2
    error = capsys.readouterr().err
    assert "nonsense" in error


# ---------------------------------------------------------------- order and estimate


def benchmark(**more: Any) -> Benchmark:
    tree = {"targets": {"a": {"url": "http://a"}, "b": {"url": "http://b"}}, "workload": {"mix": "8:8"}}
    return parse({**tree, **more}, "test")


def test_servers_that_run_take_turns_at_every_rate() -> None:
    order = [(stay.target, stay.points) for stay in stays(benchmark(rates=[1, 2], repeats=2))]
    assert order == [
        ("a", (0,)), ("b", (0,)), ("b", (1,)), ("a", (1,)),
        ("a", (0,)), ("b", (0,)), ("b", (1,)), ("a", (1,)),
    ]  # fmt: skip


def test_own_configurations_play_all_rates_per_start_and_take_turns_by_repeat() -> None:
    own = {"x": {"set": []}, "y": {"set": ["scheduler.policy=fcfs"]}}
    order = [
        (stay.repeat, stay.target, stay.points)
        for stay in stays(benchmark(targets=own, rates=[1, 2], repeats=2))
    ]
    assert order == [(0, "x", (0, 1)), (0, "y", (0, 1)), (1, "y", (0, 1)), (1, "x", (0, 1))]


def test_the_estimate_knows_that_overload_takes_longer_than_its_arrivals() -> None:
    slow = benchmark(rates=[0.5], requests=100, cv=0, capacity={})
    fast = benchmark(rates=[2.0], requests=100, cv=0, capacity={})
    assert seconds(slow, capacity=1.0) == pytest.approx(2 * 200)
    assert seconds(fast, capacity=1.0) == pytest.approx(2 * 100)
    assert seconds(benchmark(rates=[2.0], requests=100, cv=0), None) == pytest.approx(2 * 50)


# ---------------------------------------------------------------- the search


def test_the_rate_at_a_latency_is_found_by_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tests.loadgen.bench.records import answered, failed, run

    tried: list[float] = []

    class Fake:
        """Latency grows with the rate's square; at 8/s and above requests are refused."""

        def __init__(self, benchmark: Benchmark, out: Path, ended: Callable[[Run], None]) -> None:
            self._rate, self._ended = benchmark.points()[0].rate, ended

        def run(self) -> bool:
            tried.append(self._rate)
            latency = self._rate**2 / 100
            refused = [failed(1, 0.0, "429")] if self._rate >= 8 else []
            self._ended(run([answered(0, 0.0, [latency]), *refused]))
            return True

    monkeypatch.setattr(search, "Campaign", Fake)
    one = benchmark(targets={"a": {"url": "http://a"}}, rates=[1.0])
    assert search.find_rate(one, tmp_path, 0.25, lambda run: None) == pytest.approx(5.0, rel=0.05)
    assert len(tried) < search.MOST_RUNS
    assert search.find_rate(one, tmp_path, 5.0, lambda run: None) == pytest.approx(8.0, rel=0.06)
    with pytest.raises(ConfigError, match="not found in"):
        search.find_rate(one, tmp_path, 1e-9, lambda run: None)
    with pytest.raises(ConfigError, match="one target"):
        search.find_rate(benchmark(), tmp_path, 1.0, lambda run: None)


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"targets": {}}, "targets: there is none"),
        ({"targets": {"a": {}}}, r"targets\.a: needs either url or set"),
        ({"targets": {"a": {"url": "x"}}}, "does not begin with http"),
        ({"rates": []}, "rates: there is none"),
        ({"rates": [0]}, r"rates"),
        ({"nonsense": 1}, "nonsense"),
        ({"workload": {"mix": "80% 8:8"}}, "sum to 80 %"),
        ({"workload": {"trace": "x", "conversations": "y"}}, "exclude"),
        ({"workload": {"trace": "x"}, "rates": [1, 2]}, "its own arrivals"),
        ({"capacity": {"target": "z"}}, "none of a, b"),
        ({"objective": {"per_token_iterations": 10}}, "needs `capacity`"),
        ({"objective": {"tbt": 10}}, "tbt"),
    ],
)
def test_mistakes_in_a_file_are_explained(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        benchmark(**change)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench"], "targets: there is none"),
        (["bench", "--model", "x"], "--model: goes with a url"),
        (["bench", "http://a", "--rate", "fast"], "'fast' is not a number"),
        (["bench", "--config", "missing.yaml"], "missing.yaml: cannot be read"),
        (["compare", "--target", "x"], "NAME=URL"),
        (["compare", "--own", "x"], "NAME:KEY=VALUE"),
        (["compare", "--target", "x=http://a"], "needs two"),
        (["report", "missing.jsonl"], "missing.jsonl: cannot be read"),
    ],
)
def test_mistakes_on_the_command_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert skipjoin(*arguments) == 2
    assert message in capsys.readouterr().err


LOADGEN = Path(command.__file__).parents[1]


@pytest.mark.parametrize(
    "file",
    sorted([*(LOADGEN / "configs").glob("*.yaml"), *(LOADGEN / "peers").glob("*.yaml")]),
    ids=lambda file: file.name,
)
def test_the_files_that_come_with_it(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert skipjoin("compare", "--config", str(file), "--dry-run") == 0
    assert "targets:" in capsys.readouterr().out


def test_targets_of_the_command_line_come_beside_those_of_the_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = str(LOADGEN / "configs" / "skewed.yaml")
    status = skipjoin("compare", "--config", file, "--target", "peer=http://a", "--own", "fcfs:", "--dry-run")
    assert status == 0
    targets = yaml.safe_load(capsys.readouterr().out)["targets"]
    assert list(targets) == ["fcfs", "skip-join", "gittins", "peer"]
    assert (targets["peer"]["url"], targets["fcfs"]["set"]) == ("http://a", [])
