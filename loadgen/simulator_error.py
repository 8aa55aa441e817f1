"""Prints how far the simulator is from the live system: one workload, played on both.

    python -m loadgen.simulator_error            about 5 minutes on two cores

Starts the whole application per policy, plays Poisson arrivals open loop, and takes each job's time from its
scheduled arrival to the answer at the client. Then the same requests run in the simulator, under the same
configuration. Two rows of costs:

as profiled: of the profile that the application keeps, known before the run. This is the claim
as measured: fitted to the iterations of this very run. What is left is not the cost model's error, nor that
    of a machine that had become slower since it was profiled
"""

import argparse
import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import httpx
import msgspec
import numpy as np

from deploy.options import DEFAULT_CONFIG
from deploy.profile import find
from loadgen.served import ServedApplication
from loadgen.side_by_side import MODEL, complete
from loadgen.simulate.capacity import sustained
from loadgen.simulate.models import ModelProfile
from loadgen.simulate.pipeline import Pipeline
from loadgen.simulate.profile import Profile
from loadgen.simulate.results import Floats
from loadgen.workload import lengths
from loadgen.workload.requests import Request, synthetic
from services.profiler.core import CostFitter, Measurement
from shared.bus import Bus, Subscription
from shared.config import Config, load_document, override, parse
from shared.costmodel import BatchLoad
from shared.messages import StepTiming
from shared.metrics import Registry
from shared.nats_server import EmbeddedNats, with_embedded_address
from shared.subjects import Subjects

BATCH = 8
LENGTHS = partial(lengths.uniform, prompt=(16, 256), output=(8, 128))
WARM_UP = 3
"""Requests before anything is measured: connections, kernels, and the overhead when alone."""

QUIET_S = 2.0
"""Without an iteration for so long, the profiler has verified its profile."""


class Run(NamedTuple):
    """times: seconds from the scheduled arrival to the answer, by request
    compute: seconds of all stages, all iterations together
    """

    times: Floats
    iterations: int
    compute: float


class Live(NamedTuple):
    """profiled, measured: costs known before the run, and those of its own iterations
    overhead_s: measured, per iteration of a request that is alone
    """

    run: Run
    requests: list[Request]
    profiled: ModelProfile
    measured: ModelProfile
    overhead_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--policies", nargs="+", default=["fcfs", "skip-join"], help="each live, then simulated"
    )
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--load", type=float, default=0.8, help="of what full batches sustain")
    parser.add_argument("--overhead", type=float, default=0.003, metavar="S", help="per iteration, seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], dest="assignments", metavar="KEY=VALUE")
    options = parser.parse_args()
    if options.requests < 1 or options.load <= 0 or options.overhead < 0:
        parser.error("--requests and --load must be positive, --overhead not negative")
    print(
        "| policy | costs | mean, s: live | simulated | error, % | P95, s: live | simulated | error, % ",
        end="",
    )
    print("| mean error of a request, % |\n|---|---|---|---|---|---|---|---|---|")
    notes = [compare(policy, options) for policy in options.policies]
    print("\n| policy | iterations: live | profiled | measured | compute of one, ms: live ", end="")
    print(
        "| profiled | measured | overhead of one alone, ms | req/s |\n|---|---|---|---|---|---|---|---|---|"
    )
    print("\n".join(notes))


def compare(policy: str, options: argparse.Namespace) -> str:
    """Prints the rows of one policy; returns the row that helps to explain them."""
    assignments = [f"scheduler.policy={policy}", f"scheduler.max_batch_size={BATCH}", *options.assignments]
    config = with_embedded_address(parse(override(load_document(DEFAULT_CONFIG)[0], assignments)))
    server = EmbeddedNats(config.nats)  # our own, so that we can listen to what iterations cost
    try:
        # The token shows in the process list: this server is on loopback and lives for one run.
        address = (f"nats.url={config.nats.url}", f"nats.token={config.nats.token}")
        with ServedApplication(*assignments, *address) as served:
            live = asyncio.run(play(served.url, config, options))
    finally:
        server.stop()
    profiled = simulate(config, live.profiled, live.requests, options.overhead)
    measured = simulate(config, live.measured, live.requests, options.overhead)
    print(row(policy, "as profiled", live.run, profiled))
    print(row(policy, "as measured", live.run, measured), flush=True)
    runs = (live.run, profiled, measured)
    cells = [f"{run.iterations}" for run in runs]
    cells += [f"{1e3 * run.compute / run.iterations:.1f}" for run in runs]
    rate = len(live.requests) / live.requests[-1].arrival
    return f"| {policy} | {' | '.join(cells)} | {1e3 * live.overhead_s:.1f} | {rate:.2f} |"


def row(policy: str, costs: str, live: Run, simulated: Run) -> str:
    cells: list[str] = []
    for of in (np.mean, partial(np.percentile, q=95)):
        real, virtual = float(of(live.times)), float(of(simulated.times))
        cells += [f"{real:.2f}", f"{virtual:.2f}", f"{100 * (virtual / real - 1):+.1f}"]
    each = np.abs(simulated.times / live.times - 1)
    return f"| {policy} | {costs} | {' | '.join(cells)} | {100 * each.mean():.1f} |"


# ---------------------------------------------------------------- simulated


def simulate(config: Config, model: ModelProfile, requests: list[Request], overhead_s: float) -> Run:
    outcome = Pipeline(config, model, overhead_s).run(requests)
    times = np.array([record.latency for record in outcome.records])
    return Run(times, outcome.iterations, outcome.busy * config.parallel.pipeline_stages)


def fitted(measurements: Sequence[Measurement]) -> ModelProfile:
    return Profile(*msgspec.structs.astuple(CostFitter(measurements).fit())).model()


# ---------------------------------------------------------------- live


async def play(url: str, config: Config, options: argparse.Namespace) -> Live:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with (
        httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as http,
        timings(config) as heard,
    ):
        overhead_s = await warm_up(http, heard)
        profiled = fitted(find(config).measurements())
        rate = options.load * sustained(profiled, LENGTHS, BATCH, overhead_s=options.overhead)
        requests = synthetic(LENGTHS, options.requests, rate, 1.0, options.seed)
        times = await asyncio.gather(*players(http, requests, options.seed))
        measurements = await until_quiet(heard)
    run = Run(np.array(times), len(measurements), sum(item.seconds for item in measurements))
    return Live(run, requests, profiled, fitted(measurements), overhead_s)


@contextlib.asynccontextmanager
async def timings(config: Config) -> AsyncIterator[Subscription]:
    """What the profiler hears too: the work and the compute time of every iteration."""
    bus = await Bus.connect(config.nats, Subjects(config.app, pipeline=0), "simulator-error", Registry())
    try:
        yield await bus.subscribe(bus.subjects.step_timing, depth=65536)
    finally:
        await bus.close()


async def until_quiet(heard: Subscription) -> list[Measurement]:
    """All iterations until there was none for QUIET_S."""
    measurements: list[Measurement] = []
    while (delivery := await heard.next_within(QUIET_S)) is not None:
        match delivery.body:
            case StepTiming(_, BatchLoad() as load, seconds):
                measurements.append(Measurement(load, sum(seconds)))
            case _:
                pass
    return measurements


async def warm_up(http: httpx.AsyncClient, heard: Subscription) -> float:
    """When the profiler is done: some requests, one by one. Returns the overhead of the last one."""
    await until_quiet(heard)
    overhead_s = 0.0
    for _ in range(WARM_UP):
        seconds = await complete(http, 64)
        measurements = await until_quiet(heard)
        overhead_s = (seconds - sum(item.seconds for item in measurements)) / len(measurements)
    return overhead_s


def players(http: httpx.AsyncClient, requests: list[Request], seed: int) -> "Iterator[asyncio.Task[float]]":
    """A task per request; the first arrivals count from now."""
    draw = random.Random(seed)
    began = asyncio.get_running_loop().time()
    for request in requests:
        prompt = [draw.randint(1000, 20_000) for _ in range(request.prompt)]
        yield asyncio.create_task(ask(http, prompt, request.output, began + request.arrival))


async def ask(http: httpx.AsyncClient, prompt: list[int], output: int, at: float) -> float:
    """Seconds from `at`, on the loop's clock, to the answer."""
    loop = asyncio.get_running_loop()
    body = {"model": MODEL, "prompt": prompt, "max_tokens": output, "ignore_eos": True, "temperature": 0}
    await asyncio.sleep(at - loop.time())
    answer = await http.post("/v1/completions", json=body)
    ended = loop.time()
    answer.raise_for_status()
    tokens = answer.json()["usage"]["completion_tokens"]
    if tokens != output:
        raise RuntimeError(f"{tokens} output tokens instead of {output}: the two sides are not comparable")
    return ended - at


if __name__ == "__main__":
    main()
