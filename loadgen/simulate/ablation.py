"""One thing changed at a time: where the advantage comes from, and where there is none."""

from collections.abc import Iterator

import msgspec

from loadgen.simulate import models
from loadgen.simulate.capacity import work
from loadgen.simulate.paper import SLO_S
from loadgen.simulate.results import summarise
from loadgen.simulate.scenario import Scenario, swap_modes
from loadgen.workload import lengths
from loadgen.workload.requests import Request, synthetic

SWEPT = ("fcfs", "fixed-priority", "mlfq", "skip-join", "gittins", "srpt")
RATIOS = (0.25, 1.0, 4.0, 16.0, 64.0, 256.0)
TOTAL_TOKENS = 500
"""Prompt and output together, about ShareGPT's mean: only their ratio varies."""

MODEL = models.MODELS["opt-13b"]


class Point(msgspec.Struct, frozen=True):
    """One run. mean, p95: latency per output token, seconds; swap_share: stalls ÷ latency
    tbt_p99: between two tokens of a job, seconds

    value: of what is varied
    """

    study: str
    value: str
    policy: str
    swap_mode: str
    rate: float
    mean: float
    p95: float
    swap_share: float
    recomputes: int
    tbt_p99: float = 0.0


def studies(count: int, seed: int) -> Iterator[Point]:
    yield from lengths_ratio(count, seed)
    yield from swapping(count, seed)
    yield from burstiness(count, seed)
    yield from stages(count, seed)
    yield from starvation(count, seed)
    yield from alike(count, seed)
    yield from parts(count, seed)


def lengths_ratio(count: int, seed: int) -> Iterator[Point]:
    """Input ÷ output from 0.25 to 256 at 1.2 times what run to completion sustains."""
    for ratio in RATIOS:
        output = max(1, round(TOTAL_TOKENS / (1 + ratio)))
        shape = lengths.fitted(lengths.LOGNORMAL, (float(TOTAL_TOKENS - output), float(output)))
        rate = 1.2 / work(MODEL, float(TOTAL_TOKENS - output), float(output))
        requests = synthetic(shape.sample, count, rate, 1.0, seed)
        for policy in SWEPT:
            scenario = Scenario(MODEL, policy)
            yield _point("input/output", f"{ratio:g}", scenario, rate, requests)


def swapping(count: int, seed: int) -> Iterator[Point]:
    """Every mode that the KV-cache manager has, at the paper's rates. With the artifact's alpha the schedule
    swaps far more than with the default's, so that the modes differ.
    """
    for rate in (1.0, 1.5, 2.0, 3.0):
        requests = synthetic(lengths.named("sharegpt"), count, rate, 1.0, seed)
        for mode in swap_modes():
            yield _point("swap mode", mode, Scenario(MODEL, swap_mode=mode), rate, requests)
            often = Scenario(MODEL, preset="paper-v3", starvation_s=3.0, swap_mode=mode)
            yield _point("swap mode, alpha 3 s", mode, often, rate, requests)


def burstiness(count: int, seed: int) -> Iterator[Point]:
    for cv in (1.0, 2.0, 4.0, 8.0):
        requests = synthetic(lengths.named("sharegpt"), count, 1.5, cv, seed)
        for policy in ("fcfs", "skip-join"):
            scenario = Scenario(MODEL, policy)
            yield _point("burstiness", f"cv {cv:g}", scenario, 1.5, requests)


def stages(count: int, seed: int) -> Iterator[Point]:
    """The same cost and memory cut into more stages, each with a batch of its own in flight."""
    for number in (1, 2, 4, 8, 16):
        rate = 1.5 * number
        requests = synthetic(lengths.named("sharegpt"), count, rate, 1.0, seed)
        model = msgspec.structs.replace(
            MODEL, device_tokens=number * MODEL.device_tokens, host_bytes=number * MODEL.host_bytes
        )
        for policy in ("fcfs", "skip-join"):
            scenario = Scenario(model, policy, stages=number)
            yield _point("stages", str(number), scenario, rate, requests)


def starvation(count: int, seed: int) -> Iterator[Point]:
    """What the bound on waiting costs: under overload every waiting job exceeds a short one. `stretched` is
    the default, which keeps promotions to a share of the batches.
    """
    requests = synthetic(lengths.named("sharegpt"), count, 2.41, 1.0, seed)
    for alpha in (0.3, 3.0, 10.0, 25.0, 100.0):
        scenario = Scenario(MODEL, preset="paper-v3", starvation_s=alpha)
        yield _point("starvation", f"{alpha:g} s", scenario, 2.41, requests)
    yield _point("starvation", "stretched", Scenario(MODEL), 2.41, requests)


def alike(count: int, seed: int) -> Iterator[Point]:
    """Low load, and lengths that are all the same: nothing to gain."""
    for name, rate in (("sharegpt", 0.5), ("constant", 2.0), ("uniform", 2.0), ("bimodal", 2.0)):
        requests = synthetic(lengths.named(name), count, rate, 1.0, seed)
        for policy in ("fcfs", "skip-join", "gittins"):
            scenario = Scenario(MODEL, policy)
            yield _point("lengths", name, scenario, rate, requests)


def parts(count: int, seed: int) -> Iterator[Point]:
    """Chunked prefill: prompts of 500 tokens in the mean, computed whole or beside the decodes of others."""
    shape = lengths.fitted(lengths.LOGNORMAL, (500.0, 200.0))
    for load in (0.7, 1.2):
        rate = load / work(MODEL, 500.0, 200.0)
        requests = synthetic(shape.sample, count, rate, 1.0, seed)
        for policy in ("fcfs", "skip-join"):
            yield _point("prefill", "whole", Scenario(MODEL, policy), rate, requests)
            for tokens in (512, 256):
                scenario = Scenario(MODEL, policy, batch_tokens=tokens, chunked=True)
                yield _point("prefill", f"parts of {tokens}", scenario, rate, requests)


def _point(study: str, value: str, scenario: Scenario, rate: float, requests: list[Request]) -> Point:
    summary = summarise(scenario.run(requests), SLO_S)
    each = summary.latency_per_token
    return Point(
        study, value, scenario.policy, scenario.swap_mode, round(rate, 3), round(each.mean, 4),
        round(each.p95, 4), round(summary.swap_share, 4), summary.recomputes,
        round(summary.tbt.p99, 4),
    )  # fmt: skip
