"""What the report says and shows."""

import base64
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from loadgen.bench.record import End, Run, RunFile
from loadgen.bench.settings import Objective
from loadgen.report import figures, page, results, tables
from tests.loadgen.bench.records import answered, failed, run


def save(folder: Path, saved: Run, name: str) -> None:
    with RunFile(folder / f"{name}.jsonl", saved.header) as file:
        for record in saved.records:
            file.add(record)
        file.finish(saved.end)


def two_targets(folder: Path, **header: object) -> list[results.Cell]:
    """a takes 0.1 s a token at 1/s and 0.3 s at 2/s, b twice as long."""
    for target, factor in (("a", 1.0), ("b<i>", 2.0)):
        for rate, each in ((1.0, 0.1), (2.0, 0.3)):
            records = [
                answered(
                    i, i / rate, [i / rate + factor * each * (n + 1) for n in range(5)],
                    kind="short" if i % 2 else "long",
                )
                for i in range(20)
            ]  # fmt: skip
            saved = run(records, target, rate, **header)
            saved.header.benchmark["objective"] = msgspec.to_builtins(Objective(per_token=0.25))
            save(folder, saved, f"{target}-{rate}")
    return results.load([folder])


def test_the_overview_has_a_row_per_target_and_rate(tmp_path: Path) -> None:
    head, *rows = tables.overview(two_targets(tmp_path))
    assert [row[:4] for row in rows] == [
        ["a", "1", "20", "0"], ["a", "2", "20", "0"], ["b<i>", "1", "20", "0"], ["b<i>", "2", "20", "0"],
    ]  # fmt: skip
    assert rows[0][head.index("latency per output token, ms: mean / P95")] == "100 / 100"
    assert rows[0][head.index("JCT of short, s: mean / P95")] == "0.50 / 0.50"
    assert rows[1][head.index("goodput, req/s (share)")].endswith("(0%)")
    assert tables.markdown([head, *rows]).count("\n") == 5


def test_targets_are_in_the_benchmarks_order(tmp_path: Path) -> None:
    """Not in that of the files' names: the first is what the others are compared with."""
    wanted = ["fcfs", "b", "a"]
    for target in sorted(wanted):
        saved = run([answered(0, 0.0, [0.1])], target)
        saved.header.benchmark["targets"] = {name: {"url": "http://server"} for name in wanted}
        save(tmp_path, saved, target)
    assert [cell.target for cell in results.load([tmp_path])] == wanted


def test_the_rate_at_the_objective_is_between_those_measured(tmp_path: Path) -> None:
    _, a, b = tables.limits(two_targets(tmp_path))
    assert a == ["a", "250", "1.75"]
    assert b == ["b<i>", "250", "1.12"]


def test_an_objective_in_iterations_needs_no_more_than_the_header(tmp_path: Path) -> None:
    cells = two_targets(tmp_path, capacity=4.0, lone_iteration_s=0.02)
    strict = Objective(per_token_iterations=11)
    cells = [msgspec.structs.replace(cell, objective=strict) for cell in cells]
    assert [row[2] for row in tables.limits(cells)[1:]] == ["1.60", "1.05"]


def test_the_page_is_whole_and_escaped(tmp_path: Path) -> None:
    cells = two_targets(tmp_path)
    text = page.render(cells, list(figures.draw(cells)))
    assert "b&lt;i&gt;" in text
    assert "<i>" not in text
    assert not re.findall(r'(?:src|href)="(?!data:)', text)  # nothing is loaded from elsewhere
    pictures = re.findall(r"data:image/svg\+xml;base64,([^\"]+)", text)
    assert len(pictures) == 2 + 2 + 4  # over the rate, by class; distributions per rate; timelines
    assert all(b"<svg" in base64.b64decode(picture) for picture in pictures)
    for needed in (
        "Overview",
        "Rate at the objective",
        "b&lt;i&gt;, 2 req/s against a",
        "95 % interval",
        "per_token",
    ):
        assert needed in text


def test_every_axis_says_its_unit(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []

    class Spied(figures._Sheet):
        def drawn(self, forms: Sequence[str]) -> figures.Figure:
            for panel in self.axes.flatten():
                shared = self.name.startswith("timeline") and panel is not self.axes.flatten()[-1]
                seen.append((self.name, panel.get_ylabel()))
                seen.append((self.name, "time, s" if shared else panel.get_xlabel()))
            return super().drawn(forms)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "_Sheet", Spied)
        for _ in figures.draw(two_targets(tmp_path), forms=()):
            pass
    units = (", s", "tokens/s", "per second", "share of", "requests/s", "%", "request", "open requests")
    assert len(seen) > 20
    assert all(label.endswith(units) or label.startswith(units) for _, label in seen), seen


def test_warnings_say_what_to_know_before_believing(tmp_path: Path) -> None:
    records = [
        answered(0, 0.0, [1.0], sent=0.5, prompt=12),
        answered(1, 0.0, [1.0], asked_output=7, counted_by="chunks"),
        answered(2, 0.0, [1.0], output=20, asked_output=20),
        failed(3, 0.0, "429", detail="try later"),
        failed(4, 0.0, "unfinished"),
    ]
    saved = run(records)
    saved.end = End(5.0, aborted=True)
    save(tmp_path, saved, "r")
    text = "\n".join(tables.warnings(results.load([tmp_path])))
    for needed in (
        "1 of 5 requests failed: 429 (try later)", "leave out the unfinished", "stopped before",
        "ms late (P99)", "1 prompts were not as", "1 answers were not as", "1 answers taken for one",
        "tokens a chunk",
    ):  # fmt: skip
        assert needed in text
    assert list(tables.warnings([])) == []


def test_repeats_are_pooled_and_rates_averaged(tmp_path: Path) -> None:
    for repeat, latency in enumerate((1.0, 3.0)):
        save(tmp_path, run([answered(0, 0.0, [latency])], repeat=repeat), str(repeat))
    (cell,) = results.load([tmp_path])
    summary = cell.summary()
    assert (summary.requests, summary.jct.mean) == (2, 2.0)
    assert summary.output_rate == pytest.approx((1 + 1 / 3) / 2)


def test_campaigns_with_capacities_of_their_own_lie_at_the_same_loads(tmp_path: Path) -> None:
    for number, (capacity, latency) in enumerate(((1.0, 1.0), (1.1, 3.0))):
        for target in ("a", "b"):
            saved = run([answered(0, 0.0, [latency])], target, 0.9 * capacity, load=0.9, capacity=capacity)
            save(tmp_path, saved, f"{target}{number}")
    cells = results.load([tmp_path])
    assert [(cell.name, len(cell.runs)) for cell in cells] == [
        ("a, 0.9 of capacity", 2), ("b, 0.9 of capacity", 2),
    ]  # fmt: skip
    ((_, table),) = page.comparisons(cells)
    assert table[1][2] == "2"  # each run against the one that had the same rate


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from shared.errors import ConfigError

    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"skipjoin\[plots\]"):
        figures.require()
