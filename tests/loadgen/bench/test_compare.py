"""Ratios with intervals, on data whose truth is known."""

import math

import numpy as np
import pytest

from loadgen.bench.compare import Ratio, paired, ratios, throughput
from loadgen.bench.record import Record, Run
from tests.loadgen.bench.records import answered, failed, run

REQUESTS = 120


def queue(draw: np.random.Generator, drift: float = 0.3) -> list[float]:
    """Latencies that neighbours share, as in a queue, and that a whole run shares."""
    noise = draw.standard_normal(REQUESTS)
    level = 0.0
    logs: list[float] = []
    for step in noise:
        level = 0.9 * level + 0.4 * step
        logs.append(level)
    return np.exp(np.array(logs) + drift * draw.standard_normal()).tolist()


def runs(draw: np.random.Generator, repeats: int, factor: float) -> tuple[list[Run], list[Run]]:
    """b takes `factor` times as long as a, up to noise of its own and of its run."""
    a: list[Run] = []
    b: list[Run] = []
    for repeat in range(repeats):
        shared = queue(draw)
        drift = np.exp(0.15 * draw.standard_normal())
        own = np.exp(0.3 * draw.standard_normal(REQUESTS))
        a.append(run(records(shared), "a", repeat=repeat))
        b.append(
            run(
                records([factor * drift * x * y for x, y in zip(shared, own, strict=True)]),
                "b",
                repeat=repeat,
            )
        )
    return a, b


def records(latencies: list[float]) -> list[Record]:
    return [answered(i, float(i), [i + latency]) for i, latency in enumerate(latencies)]


def of(found: list[Ratio], metric: str = "jct", statistic: str = "mean", kind: str = "") -> Ratio:
    return next(
        item for item in found if (item.metric, item.statistic, item.kind) == (metric, statistic, kind)
    )


def test_the_interval_holds_the_truth_about_as_often_as_it_says_and_says_something() -> None:
    draw = np.random.default_rng(1)
    held = told = 0
    for trial in range(25):
        ratio = of(ratios(paired(*runs(draw, 6, 2.0)), seed=trial))
        noise = math.exp(0.3**2 / 2)  # mean of its own noise
        held += ratio.low <= 2.0 * noise <= ratio.high
        told += ratio.low > 1.0
    assert held >= 19  # few repeats: somewhat less than 95 %
    assert told == 25


def test_the_same_server_twice_is_no_difference() -> None:
    a, _ = runs(np.random.default_rng(2), 3, 1.0)
    ratio = of(ratios(paired(a, a)))
    assert (ratio.ratio, ratio.low, ratio.high) == (1.0, 1.0, 1.0)


def test_drift_between_repeats_widens_the_interval() -> None:
    """One repeat slow for b, one for a: requests alone would call that certain."""
    base = [1.0] * REQUESTS
    double = [2.0] * REQUESTS
    a = [run(records(base), repeat=0), run(records(double), repeat=1)]
    b = [run(records(double), repeat=0), run(records(base), repeat=1)]
    ratio = of(ratios(paired(a, b)))
    assert ratio.ratio == 1.0
    assert ratio.low <= 0.5 and ratio.high >= 2.0


def test_only_what_both_answered_counts_by_class_too() -> None:
    a = [
        answered(0, 0.0, [1.0], kind="s"),
        answered(1, 0.0, [1.0], kind="l"),
        answered(2, 0.0, [9.0], kind="l"),
    ]
    b = [
        answered(0, 0.0, [3.0], kind="s"),
        answered(1, 0.0, [5.0], kind="l"),
        failed(2, 0.0, "429", kind="l"),
    ]
    found = ratios(paired([run(a)], [run(b)]))
    assert (of(found).requests, of(found).ratio) == (2, 4.0)
    assert of(found, kind="l").ratio == 5.0
    assert math.isnan(of(found, kind="s").low)  # one request has no spread


def test_repeats_without_a_partner_and_nothing_in_common() -> None:
    one, other = run([answered(0, 0.0, [1.0])], repeat=0), run([answered(0, 0.0, [1.0])], repeat=1)
    assert paired([one], [other]) == []
    assert ratios([]) == []
    assert throughput([one], [other]) is None
    dead = run([failed(0, 0.0, "429")])
    assert ratios(paired([one], [dead])) == []


def test_throughput_is_per_repeat() -> None:
    a = [run(records([1.0] * 3), repeat=i) for i in range(2)]
    b = [run([answered(0, 0.0, [1.0, 1.5])], repeat=0), run([answered(0, 0.0, [1.0, 2.0])], repeat=1)]
    ratio = throughput(a, b)
    assert ratio is not None
    assert (ratio.a, ratio.low, ratio.high) == pytest.approx((1.0, 1.0, 4 / 3))
