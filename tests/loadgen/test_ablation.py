"""The orderings that were published, and the cases in which there is nothing to gain."""

import pytest

from loadgen.simulate import models
from loadgen.simulate.capacity import work
from loadgen.simulate.results import summarise
from loadgen.simulate.scenario import Scenario
from loadgen.workload import lengths
from loadgen.workload.requests import synthetic

MODEL = models.MODELS["opt-13b"]


def mean(scenario: Scenario, shape: lengths.Sampler, rate: float, count: int = 200) -> float:
    """Latency per output token, seconds."""
    outcome = scenario.run(synthetic(shape, count, rate, 1.0, 0))
    return summarise(outcome, 0.3).latency_per_token.mean


def test_swapping_ahead_is_no_worse_than_on_demand_and_that_no_worse_than_recomputing() -> None:
    """At load, with an alpha that makes the schedule swap."""
    modes = ("proactive", "reactive", "recompute")
    sharegpt = lengths.named("sharegpt")
    proactive, reactive, recompute = (
        mean(Scenario(MODEL, preset="paper-v3", starvation_s=3.0, swap_mode=mode), sharegpt, 4.0)
        for mode in modes
    )
    assert proactive < 0.8 * reactive and reactive < 0.8 * recompute


@pytest.mark.parametrize("ratio", [1.0, 16.0])
def test_skip_join_is_ahead_of_run_to_completion_and_of_fixed_priority(ratio: float) -> None:
    output = 500.0 / (1 + ratio)
    shape = lengths.fitted(lengths.LOGNORMAL, (500.0 - output, output)).sample
    rate = 1.3 / work(MODEL, 500.0 - output, output)
    means = {policy: mean(Scenario(MODEL, policy), shape, rate) for policy in
             ("skip-join", "fcfs", "fixed-priority")}  # fmt: skip
    assert means["skip-join"] < 0.95 * min(means["fcfs"], means["fixed-priority"])


def test_skip_join_is_ahead_of_naive_mlfq_where_prompts_are_long_and_answers_short() -> None:
    """There prefill is the work: MLFQ interrupts what is short for what is long."""
    shape = lengths.fitted(lengths.LOGNORMAL, (490.0, 10.0)).sample
    rate = 1.3 / work(MODEL, 490.0, 10.0)
    assert mean(Scenario(MODEL, "skip-join"), shape, rate) < mean(Scenario(MODEL, "mlfq"), shape, rate)


@pytest.mark.parametrize("policy", ["skip-join", "gittins"])
@pytest.mark.parametrize(("name", "rate"), [("sharegpt", 0.5), ("constant", 1.2)])
def test_nothing_is_gained_or_lost_at_low_load(policy: str, name: str, rate: float) -> None:
    shape = lengths.named(name)
    fcfs = mean(Scenario(MODEL, "fcfs"), shape, rate)
    assert mean(Scenario(MODEL, policy), shape, rate) == pytest.approx(fcfs, rel=0.03)


def test_with_equal_lengths_under_load_gittins_is_fcfs_where_skip_join_loses() -> None:
    shape = lengths.named("constant")
    fcfs = mean(Scenario(MODEL, "fcfs"), shape, 2.0, 400)
    assert mean(Scenario(MODEL, "gittins"), shape, 2.0, 400) <= 1.1 * fcfs
