"""The spec of classes, and schedules made from it."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from loadgen.bench.mix import draw, parse_mix, parse_shares
from loadgen.bench.schedule import schedule
from loadgen.bench.settings import Benchmark, Limits, Point, Target, Workload
from shared.errors import ConfigError

MANY = 10_000
TARGETS = {"server": Target(url="http://server")}


def test_shares_names_and_lengths() -> None:
    kinds, lengths = draw(parse_mix("80% short=32:16, 20% long=256:256"), MANY, 1)
    assert Counter(kinds)["short"] / MANY == pytest.approx(0.8, abs=0.02)
    expected = {"short": [32, 16], "long": [256, 256]}
    assert all(expected[kind] == tokens for kind, tokens in zip(kinds, lengths.tolist(), strict=True))


def test_spans_named_lengths_and_files(tmp_path: Path) -> None:
    table = tmp_path / "lengths.csv"
    table.write_text("input_len,output_len\n7,3\n9,4\n")
    kinds, lengths = draw(parse_mix(f"25% 16-64:8-32, 25% alpaca, 50% mine={table}"), MANY, 1)
    span = lengths[np.array(kinds) == "16-64:8-32"]
    assert (span.min(axis=0).tolist(), span.max(axis=0).tolist()) == ([16, 8], [64, 32])
    assert {tuple(row) for row in lengths[np.array(kinds) == "mine"].tolist()} == {(7, 3), (9, 4)}


def test_a_longer_draw_begins_like_a_shorter_one_and_another_seed_does_not() -> None:
    classes = parse_mix("50% a=1-99:1-99, 50% b=sharegpt")
    short, long, other = draw(classes, 50, 3), draw(classes, 500, 3), draw(classes, 50, 4)
    assert short[0] == long[0][:50]
    assert np.array_equal(short[1], long[1][:50])
    assert not np.array_equal(short[1], other[1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("80% 32:16", "sum to 80 %"),
        ("50% 32:16, 32:16", "is not written as"),
        ("50% 32:16, 50% 32:16", "one name"),
        ("0:5", "empty span"),
        ("9-3:5", "empty span"),
        ("nonsense", "known are"),
        ("", "is not written as"),
        ("100% x=", "known are"),
    ],
)
def test_mistakes_are_explained(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_mix(text)


def test_tenants_are_shares_by_name() -> None:
    assert parse_shares("70% a, 30% b") == {"a": 0.7, "b": 0.3}


def benchmark(**workload: object) -> Benchmark:
    return Benchmark(TARGETS, Workload(**workload), limits=Limits(duration_s=1000.0))  # type: ignore[arg-type]


def test_the_same_requests_at_every_rate_sooner_or_later() -> None:
    slow, fast = (schedule(benchmark(mix="sharegpt"), Point(1.0, 40), rate, 5) for rate in (1.0, 4.0))
    assert [talk.asks for talk in slow] == [talk.asks for talk in fast]
    assert [talk.at for talk in slow] == pytest.approx([4 * talk.at for talk in fast])


def test_limits_leave_out_what_is_too_long_or_too_late() -> None:
    talks = schedule(benchmark(mix="50% 8:8, 50% 80:80", max_prompt=40), Point(1.0, 40), 1.0, 5)
    assert {talk.asks[0].prompt for talk in talks} == {8}
    assert [talk.asks[0].index for talk in talks] == list(range(40)), "limits change neither number nor rate"
    assert [talk.at for talk in talks] == [
        talk.at for talk in schedule(benchmark(mix="8:8"), Point(1.0, 40), 1.0, 5)
    ]
    brief = Benchmark(TARGETS, Workload(mix="8:8"), limits=Limits(duration_s=10.0))
    assert 0 < len(schedule(brief, Point(1.0, 1000), 1.0, 5)) < 30
    with pytest.raises(ConfigError, match="0 of 5120 requests of the mix fit max_prompt"):
        schedule(benchmark(mix="8:8", max_prompt=4), Point(1.0, 40), 1.0, 5)


def test_a_trace_brings_its_arrivals(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("timestamp_s,input_len,output_len\n10,5,6\n14,7,8\n12,9,1\n")
    talks = schedule(benchmark(trace=str(trace), speed=2.0), Point(1.0, 2), 99.0, 5)
    assert [(talk.at, talk.asks[0].prompt, talk.asks[0].output) for talk in talks] == [(0, 5, 6), (1, 9, 1)]


def test_conversations_stop_before_they_are_too_long(tmp_path: Path) -> None:
    table = tmp_path / "turns.csv"
    rows = ["conv_id,turn,context_len,new_prompt_len,output_len", "0,0,10,10,5", "0,1,25,10,5", "1,0,9,9,9"]
    table.write_text("\n".join(rows))
    talks = schedule(
        benchmark(conversations=str(table), max_total=29, tenants="100% t"), Point(1.0, 3), 1.0, 5
    )
    assert [[(ask.prompt, ask.output) for ask in talk.asks] for talk in talks] == [
        [(10, 5)],  # its second turn would be 25 + 5 tokens
        [(9, 9)],
        [(10, 5)],  # the table again from its beginning
    ]
    assert {ask.tenant for talk in talks for ask in talk.asks} == {"t"}
    both = schedule(benchmark(conversations=str(table)), Point(1.0, 1), 1.0, 5)[0].asks
    assert [ask.kind for ask in both] == ["turn 1", "turn 2"]
    assert both[0].pause == 0 < both[1].pause
