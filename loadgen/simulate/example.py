"""The paper's worked example: three jobs at time 0, whose first iterations take 5, 1 and 2."""

from loadgen.simulate.models import ModelProfile
from loadgen.simulate.pipeline import Pipeline
from loadgen.workload.requests import Request
from shared.config import parse
from shared.costmodel import CostModel

POLICIES = ("skip-join", "fcfs", "mlfq", "srpt")

FIRST_ITERATIONS = {"J1": 5, "J2": 1, "J3": 2}
OUTPUT_TOKENS = 2
DECODE = 1

_TOKENS_PER_UNIT = 10
_COST = CostModel(0.0, 1 / _TOKENS_PER_UNIT, 0.0, DECODE, 0.0, 0.0, samples=1)
_MODEL = ModelProfile("example", _COST, 1, 16_384, 16_384, 1e9)
_NEVER_S = 1e9

Result = dict[str, dict[str, dict[str, object]]]


def run() -> Result:
    """{"policies": {policy: {"completion": {job: time}, "mean_per_token": time}}}"""
    return {"policies": {policy: _completions(policy) for policy in POLICIES}}


def _completions(policy: str) -> dict[str, object]:
    scheduler = {"policy": policy, "max_batch_size": 1, "levels": 4, "starvation_s": _NEVER_S}
    jobs = [Request(0.0, units * _TOKENS_PER_UNIT, OUTPUT_TOKENS) for units in FIRST_ITERATIONS.values()]
    records = Pipeline(parse({"scheduler": scheduler}), _MODEL).run(jobs).records
    ends = [round(record.token_times[-1], 6) for record in records]
    mean = sum(ends) / len(ends) / OUTPUT_TOKENS
    return {
        "completion": {name: _plain(end) for name, end in zip(FIRST_ITERATIONS, ends, strict=True)},
        "mean_per_token": _plain(round(mean, 2)),
    }


def _plain(number: float) -> int | float:
    return int(number) if number.is_integer() else number
