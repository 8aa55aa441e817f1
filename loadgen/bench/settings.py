"""What a benchmark is, in one file: targets, workload, rates and limits. `skipjoin bench` and `compare` read
it, and every result file repeats it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml
from msgspec import Meta

from loadgen.bench.mix import parse_mix, parse_shares
from shared.errors import ConfigError

Positive = Annotated[int, Meta(ge=1)]
Above0 = Annotated[float, Meta(gt=0)]
AtLeast0 = Annotated[float, Meta(ge=0)]


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node of the tree."""


class Target(Part, frozen=True):
    """A server. Either `url`, of one that runs, or `set`, to start Skipjoin itself.

    url: of its API, with or without /v1, such as http://127.0.0.1:8000
    set: KEY=VALUE overrides of Skipjoin's configuration
    model: default: the first that /v1/models names
    api: which endpoint
    ignore_eos: answers of exact length; default: where the server takes the field
    token_ids: ask for `return_token_ids`; default: where the server takes the field
    tokenizer: a tokenizer.json, or the folder that has one; default: the server's /tokenize, else words
    key_variable: environment variable with the API key
    body: further fields of every request
    """

    url: str | None = None
    set: tuple[str, ...] | None = None
    model: str | None = None
    api: Literal["completions", "chat"] = "completions"
    ignore_eos: bool | None = None
    token_ids: bool | None = None
    tokenizer: str | None = None
    key_variable: str | None = None
    body: dict[str, Any] = {}


class Workload(Part, frozen=True):
    """mix: classes of requests with their shares and lengths, see loadgen/bench/mix.py
    trace: lengths of a trace file instead, and its arrivals, played `speed` times as fast
    conversations: a multi-turn table instead; the rate is of conversations that begin
    think_s: mean pause before a next turn, exponential
    max_prompt, max_total: longer requests (tokens) are left out
    tenants: shares of the requests, such as "70% a, 30% b"; sent as `user`
    """

    mix: str = "sharegpt"
    trace: str | None = None
    speed: Above0 = 1.0
    conversations: str | None = None
    think_s: AtLeast0 = 10.0
    max_prompt: Positive | None = None
    max_total: Positive | None = None
    tenants: str | None = None


class Point(Part, frozen=True):
    """rate: requests a second, or of the capacity; requests: default: the benchmark's"""

    rate: Above0
    requests: Positive | None = None


class Capacity(Part, frozen=True):
    """Rates count in multiples of what `target` completes when `requests` arrive at once.

    lone: requests that run one after another first, for the iteration of a request that is alone
    measured: requests/s; default: find out
    """

    target: str | None = None
    requests: Positive = 64
    lone: Positive = 3
    measured: Above0 | None = None


class Objective(Part, frozen=True):
    """What a request must meet to count for goodput. All in seconds; one that is not given is met.

    per_token: latency from the scheduled arrival, divided by output tokens
    per_token_iterations: the same, in decode iterations of a request that is alone (FastServe's SLO: 10)
    """

    ttft: Above0 | None = None
    tpot: Above0 | None = None
    per_token: Above0 | None = None
    per_token_iterations: Above0 | None = None


class Limits(Part, frozen=True):
    """concurrency: requests that are open at once; others wait, and the wait counts
    timeout_s: of one request, from when it is sent
    duration_s: arrivals after this are left out
    drain_s: how long unfinished answers are awaited after the last arrival
    """

    concurrency: Positive = 1024
    timeout_s: Above0 = 600.0
    duration_s: Above0 = 1800.0
    drain_s: AtLeast0 = 600.0


class Benchmark(Part, frozen=True):
    """targets: by name
    rates: requests a second, or of the capacity where there is a `capacity`
    cv: coefficient of variation of the gaps between arrivals: 1 is Poisson
    repeats: of everything, each with another seed
    warm_up: requests before each run, not measured
    """

    targets: dict[str, Target] = {}
    workload: Workload = Workload()
    rates: tuple[Above0 | Point, ...] = (1.0,)
    requests: Positive = 100
    cv: AtLeast0 = 1.0
    seed: int = 0
    repeats: Positive = 1
    warm_up: Annotated[int, Meta(ge=0)] = 3
    capacity: Capacity | None = None
    objective: Objective = Objective()
    limits: Limits = Limits()

    def points(self) -> list[Point]:
        """Rates with their number of requests."""
        points = [rate if isinstance(rate, Point) else Point(rate) for rate in self.rates]
        return [Point(point.rate, point.requests or self.requests) for point in points]


def read(path: Path) -> dict[str, Any]:
    """The file's tree, unchecked. Raises ConfigError if it is none."""
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: not a mapping of keys; loadgen/configs has examples")
    return tree


def parse(tree: dict[str, Any], name: str) -> Benchmark:
    """`name` stands for the file in messages. Raises ConfigError with the path of the bad key."""
    try:
        benchmark = msgspec.convert(tree, Benchmark)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name}: {error}") from None
    for message in _mistakes(benchmark):
        raise ConfigError(f"{name}: {message}")
    return benchmark


def _mistakes(benchmark: Benchmark) -> Iterator[str]:
    if not benchmark.targets:
        yield "targets: there is none; give each a url, or set to start Skipjoin"
    for key, target in benchmark.targets.items():
        if (target.url is None) == (target.set is None):
            yield f"targets.{key}: needs either url or set"
        if target.url is not None and not target.url.startswith(("http://", "https://")):
            yield f"targets.{key}.url: {target.url!r} does not begin with http:// or https://"
    if not benchmark.rates:
        yield "rates: there is none"
    workload = benchmark.workload
    if workload.trace is not None and workload.conversations is not None:
        yield "workload: trace and conversations exclude each other"
    if workload.trace is not None and len(benchmark.rates) > 1:
        yield "rates: a trace has its own arrivals; vary workload.speed"
    parse_mix(workload.mix)
    if workload.tenants is not None:
        parse_shares(workload.tenants)
    capacity = benchmark.capacity
    if capacity is not None and capacity.target is not None and capacity.target not in benchmark.targets:
        yield f"capacity.target: {capacity.target!r} is none of {', '.join(benchmark.targets)}"
    if capacity is not None and workload.trace is not None:
        yield "capacity: a trace has its own arrivals"
    if benchmark.objective.per_token_iterations is not None and capacity is None:
        yield "objective.per_token_iterations: needs `capacity`, which measures the iteration"


def to_yaml(benchmark: Benchmark) -> str:
    return yaml.safe_dump(msgspec.to_builtins(benchmark), sort_keys=False, allow_unicode=True)
