"""Figures of runs whose times are known."""

import math

import pytest

from loadgen.bench.measure import by_kind, capacity, meets, per_token_limit, summarise, tpot
from loadgen.bench.record import ABORTED
from loadgen.bench.settings import Objective
from tests.loadgen.bench.records import answered, failed


def test_every_metric_counts_from_when_the_request_was_due() -> None:
    late = answered(0, 10.0, [12.0, 12.5, 14.0], sent=11.5)  # sent 1.5 s late: that is part of its latency
    summary = summarise([late], Objective())
    assert summary.ttft.mean == 2.0
    assert summary.jct.mean == 4.0
    assert summary.per_token.mean == pytest.approx(4 / 3)
    assert (summary.tbt.count, summary.tbt.mean) == (2, 1.0)
    assert summary.tpot.mean == 1.0
    assert summary.late_p99 == 1.5


def test_percentiles() -> None:
    records = [answered(i, float(i), [i + 0.001 * (i + 1)]) for i in range(1001)]
    ttft = summarise(records, Objective()).ttft
    assert (ttft.p50, ttft.p95, ttft.p99, ttft.p999) == pytest.approx((0.501, 0.951, 0.991, 1.0))


def test_a_chunk_of_several_tokens_is_one_gap_and_its_tokens_count_in_tpot() -> None:
    # 4 tokens at 1 s, 4 at 3 s, 1 at 4 s: the reader waits twice.
    record = answered(0, 0.0, [1.0, 3.0, 4.0], output=9, chunk_tokens=[4, 4, 1])
    summary = summarise([record], Objective())
    assert (summary.tbt.count, summary.tbt.mean) == (2, 1.5)
    assert summary.tpot.mean == pytest.approx(
        3 / 5
    )  # three seconds for the five tokens after the first chunk
    assert summary.tokens_per_chunk == 3.0
    assert summary.per_token.mean == pytest.approx(4 / 9)


def test_without_counts_the_first_chunk_is_taken_for_one_token_and_one_chunk_has_no_tpot() -> None:
    assert tpot(answered(0, 0.0, [1.0, 3.0], output=5)) == 0.5
    assert tpot(answered(0, 0.0, [1.0], output=5)) is None


def test_failures_are_counted_by_kind_and_miss_the_objective() -> None:
    records = [
        answered(0, 0.0, [0.5, 1.0]),
        failed(1, 1.0, "429"),
        failed(2, 2.0, "429"),
        failed(3, 3.0, "timeout"),
        failed(4, 4.0, ABORTED),  # somebody stopped the run: it says nothing about the server
    ]
    summary = summarise(records, Objective(ttft=0.6))
    assert (summary.requests, summary.completed) == (4, 1)
    assert summary.failures == {"429": 2, "timeout": 1}
    assert summary.met == 0.25
    assert summary.seconds == 3.0
    assert summary.goodput == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("objective", "met"),
    [
        (Objective(), True),
        (Objective(ttft=1.0, tpot=0.5), True),
        (Objective(ttft=0.9), False),
        (Objective(tpot=0.4), False),
        (Objective(per_token=0.6), False),
        (Objective(per_token_iterations=10), True),  # of 0.07 s: 0.7 s, and it took 2 s / 3
        (Objective(per_token_iterations=9), False),
    ],
)
def test_objectives(objective: Objective, met: bool) -> None:
    assert meets(answered(0, 0.0, [1.0, 1.5, 2.0]), objective, lone_iteration_s=0.07) is met


def test_the_stricter_limit_of_the_latency_per_token() -> None:
    assert per_token_limit(Objective(per_token=0.3, per_token_iterations=10), 0.02) == 0.2
    assert per_token_limit(Objective(per_token_iterations=10), None) is None


def test_fairness_is_the_worst_tenant_over_the_best() -> None:
    records = [
        answered(0, 0.0, [1.0], tenant="a"),
        answered(1, 0.0, [3.0], tenant="a"),
        answered(2, 0.0, [4.0], tenant="b"),
    ]
    assert summarise(records, Objective()).fairness == 2.0
    assert summarise(records[:2], Objective()).fairness is None


def test_classes_and_lengths_that_are_not_as_wanted() -> None:
    records = [
        answered(0, 0.0, [1.0], kind="short", prompt=11),
        answered(1, 0.0, [1.0], kind="long", asked_output=9, counted_by="chunks"),
    ]
    summary = summarise(records, Objective())
    assert (summary.prompt_errors, summary.output_errors, summary.guessed) == (1, 1, 1)
    assert {kind: len(mine) for kind, mine in by_kind(records).items()} == {"short": 1, "long": 1}
    assert by_kind(records[:1]) == {}


def test_nothing_answered_is_no_number_and_no_error() -> None:
    summary = summarise([failed(0, 0.0, "connection")], Objective(ttft=1.0))
    assert math.isnan(summary.ttft.mean)
    assert (summary.goodput, summary.met) == (pytest.approx(math.nan, nan_ok=True), 0.0)
    assert math.isnan(summarise([], Objective()).throughput)


def test_capacity_leaves_out_the_tail_of_half_empty_batches() -> None:
    # One token a second from ten requests at once, then one straggler of one token for 9 more seconds.
    records = [answered(i, 0.0, [float(i + 1)]) for i in range(9)] + [answered(9, 0.0, [18.0])]
    assert capacity(records) == pytest.approx(0.9 * 10 / 9)
    assert math.isnan(capacity([failed(0, 0.0, "429")]))
