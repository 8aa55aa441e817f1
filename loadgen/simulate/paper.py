"""FastServe's headline: the rate at which latency reaches 0.3 s per output token, next to the published one.

Two regimes. `finite` is what was published: a short run (N = 200 s of arrivals, 20 to 400 requests) into an
empty system, nothing removed; at overload its latency depends on N. `steady` is the middle half of a longer
run: the rate that can be held.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
import numpy as np

from loadgen.search import highest_rate
from loadgen.simulate import models
from loadgen.simulate.models import GB
from loadgen.simulate.results import Floats, per_token, steady
from loadgen.simulate.scenario import Scenario
from loadgen.workload import lengths
from loadgen.workload.requests import synthetic

SLO_S = 0.3
"""Per output token."""

STEADY_REQUESTS = 1000

MODELS = ("opt-13b", "opt-66b", "opt-175b")
LENGTHS = ("sharegpt", "alpaca")
METRICS: dict[str, Callable[[Floats], float]] = {
    "mean": lambda each: float(each.mean()),
    "p95": lambda each: float(np.percentile(each, 95)),
}
SYSTEMS = ("fcfs", "mlfq", "fixed-priority", "skip-join", "vllm")
"""Policies, and `vllm`: fcfs with recomputation at the cost of vLLM's engine, where that was published."""

ANCHORS: dict[tuple[str, str, str], dict[str, float]] = {
    ("opt-13b", "sharegpt", "mean"): {"vllm": 2.30, "fcfs": 2.41, "skip-join": 4.89},
    ("opt-66b", "sharegpt", "mean"): {"vllm": 0.84, "fcfs": 2.03, "skip-join": 4.55},
    ("opt-175b", "sharegpt", "mean"): {"vllm": 0.76, "fcfs": 2.18, "skip-join": 5.31},
    ("opt-13b", "alpaca", "mean"): {"vllm": 11.7, "fcfs": 16.3, "skip-join": 32.4},
    ("opt-66b", "alpaca", "mean"): {"vllm": 5.97, "fcfs": 10.1, "skip-join": 17.2},
    ("opt-175b", "alpaca", "mean"): {"vllm": 6.04, "fcfs": 12.4, "skip-join": 20.1},
    ("opt-13b", "sharegpt", "p95"): {"vllm": 1.87, "fcfs": 2.00, "skip-join": 3.92},
    ("opt-66b", "sharegpt", "p95"): {"vllm": 0.46, "fcfs": 1.41, "skip-join": 4.00},
    ("opt-175b", "sharegpt", "p95"): {"vllm": 0.57, "fcfs": 1.64, "skip-join": 2.43},
}
"""Requests a second, from the authors' figure data (reference/fastserve.md), without FasterTransformer."""


class Row(msgspec.Struct, frozen=True):
    """rate_at_slo, anchor: requests a second; ratio: the first ÷ the second
    preset: parameters of the queues
    """

    model: str
    lengths: str
    metric: str
    policy: str
    rate_at_slo: float
    anchor: float | None
    ratio: float | None
    regime: str
    preset: str


def rows(
    model_names: Sequence[str], length_names: Sequence[str], systems: Sequence[str], regimes: Sequence[str],
    seeds: int, starvation_s: float | None, preset: str,
) -> Iterator[Row]:  # fmt: skip
    """One at a time, as they are found. starvation_s: None: the preset's."""
    for model_name in model_names:
        for length_name in length_names:
            for system in systems:
                scenario = _scenario(model_name, length_name, system, starvation_s, preset)
                if scenario is None:
                    continue
                for regime in regimes:
                    yield from _measure(scenario, model_name, length_name, system, regime, seeds)


def _scenario(
    model_name: str, length_name: str, system: str, starvation_s: float | None, preset: str
) -> Scenario | None:
    """None for what nobody has measured."""
    profile = f"{model_name}-vllm" if system == "vllm" else model_name
    policy = "fcfs" if system == "vllm" else system
    if system == "vllm" and profile not in models.MODELS:
        return None
    model = models.MODELS[profile]
    if model_name == "opt-13b" and length_name.startswith("alpaca"):
        model = msgspec.structs.replace(model, host_bytes=48 * GB)  # as in the artifact
    swap_mode = "recompute" if system == "vllm" else "proactive"
    return Scenario(model, policy, preset, swap_mode, starvation_s=starvation_s)


def _measure(
    scenario: Scenario, model: str, length_name: str, system: str, regime: str, seeds: int
) -> Iterator[Row]:
    curve = Curve(scenario, length_name, regime, range(seeds if regime == "finite" else 1))
    capacity = (
        _guess(model, length_name, system) if regime == "finite" else _guess(model, length_name, "fcfs")
    )
    for metric, of in METRICS.items():
        rate = highest_rate(lambda rate, of=of: curve.at(rate, of), SLO_S, capacity, tolerance=0.03)
        anchor = ANCHORS.get((model, length_name, metric), {}).get(system)
        ratio = None if anchor is None else round(rate / anchor, 2)
        yield Row(model, length_name, metric, system, round(rate, 3), anchor, ratio, regime, scenario.preset)


def _guess(model: str, length_name: str, system: str) -> float:
    """Where the search begins, requests a second."""
    anchors = ANCHORS.get((model, length_name, "mean"), {"fcfs": 2.0})
    return anchors.get(system, anchors["fcfs"])


class Curve:
    """Latency per output token over the rate, the same random numbers at every rate; runs are kept, since
    the metrics are searched one after the other.
    """

    def __init__(self, scenario: Scenario, length_name: str, regime: str, seeds: Iterable[int]) -> None:
        self._scenario = scenario
        self._sampler = lengths.named(length_name)
        self._finite = regime == "finite"
        self._seeds = list(seeds)
        self._runs: dict[float, list[Floats]] = {}

    def at(self, rate: float, metric: Callable[[Floats], float]) -> float:
        """Mean over the seeds, seconds per token."""
        if rate not in self._runs:
            self._runs[rate] = [self._run(rate, seed) for seed in self._seeds]
        return sum(map(metric, self._runs[rate])) / len(self._seeds)

    def _run(self, rate: float, seed: int) -> Floats:
        count = requests_published(rate) if self._finite else STEADY_REQUESTS
        records = self._scenario.run(synthetic(self._sampler, count, rate, 1.0, seed)).records
        return per_token(records if self._finite else steady(records))


def requests_published(rate: float) -> int:
    """N of the artifact's runs: 20 to 400, 400 from 2 requests a second up."""
    return max(20, min(400, round(200 * rate)))
