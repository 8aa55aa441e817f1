"""Who asks what, and when: the benchmark's workload at one rate, reproducible by its seed."""

from pathlib import Path

import msgspec
import numpy as np

from loadgen.bench import mix
from loadgen.bench.settings import Benchmark, Point, Workload
from loadgen.workload import traces
from loadgen.workload.arrivals import gamma
from loadgen.workload.requests import Turn
from shared.errors import ConfigError

_PAUSES = 7
"""Stream of the seed that think times are drawn from."""

_DRAWS = 100
"""Per request, to find one that fits; a mix that fits more rarely is a mistake."""


class Ask(msgspec.Struct, frozen=True):
    """One request, or one turn of a conversation.

    prompt, output: tokens; of a turn, prompt is what its user adds
    pause: seconds of thinking before it, since the answer of the turn before
    """

    index: int
    kind: str
    tenant: str
    prompt: int
    output: int
    pause: float = 0.0


class Talk(msgspec.Struct, frozen=True):
    """at: when the first ask arrives, seconds; each of the others follows the one before."""

    at: float
    asks: tuple[Ask, ...]


LONE = Talk(0.0, (Ask(0, "lone", "", prompt=64, output=64),))
"""The request whose iterations are measured when it is alone."""


def all_at_once(benchmark: Benchmark, requests: int) -> list[Talk]:
    """What the capacity is measured with. Raises ConfigError as `schedule` does."""
    return schedule(benchmark, Point(1.0, requests), 1e9, benchmark.seed)


def schedule(benchmark: Benchmark, point: Point, rate: float, seed: int) -> list[Talk]:
    """By arrival. rate: per second, of requests or of conversations; a trace has its own.

    Raises ConfigError for files that cannot be read and for limits that leave nothing.
    """
    workload, count = benchmark.workload, point.requests or benchmark.requests
    if workload.conversations is not None:
        talks = _conversations(workload, count, gamma(count, rate, benchmark.cv, seed).tolist(), seed)
    elif workload.trace is not None:
        talks = _trace(workload, count)
    else:
        talks = _mixed(workload, gamma(count, rate, benchmark.cv, seed).tolist(), seed)
    talks = [talk for talk in talks if talk.asks and talk.at <= benchmark.limits.duration_s]
    if not talks:
        raise ConfigError("workload: its limits and limits.duration_s leave no request")
    return _numbered(talks, workload, seed)


def _mixed(workload: Workload, arrivals: list[float], seed: int) -> list[Talk]:
    """One for each arrival: what does not fit is drawn again, or limits would change rate and count."""
    classes, drawn = mix.parse_mix(workload.mix), len(arrivals)
    while True:
        kinds, tokens = mix.draw(classes, drawn, seed)
        fitting = [
            Ask(0, kind, "", prompt, output)
            for kind, (prompt, output) in zip(kinds, tokens.tolist(), strict=True)
            if _fits(workload, prompt, output)
        ]
        if len(fitting) >= len(arrivals):
            return [Talk(at, (ask,)) for at, ask in zip(arrivals, fitting, strict=False)]
        if drawn > _DRAWS * len(arrivals):
            raise ConfigError(
                f"workload: {len(fitting)} of {drawn} requests of the mix fit max_prompt and max_total"
            )
        drawn *= 2  # a longer draw begins like a shorter one


def _trace(workload: Workload, count: int) -> list[Talk]:
    assert workload.trace is not None
    requests = traces.read(Path(workload.trace)).at_speed(workload.speed)
    fitting = [item for item in requests if _fits(workload, item.prompt, item.output)]
    return [Talk(item.arrival, (Ask(0, "trace", "", item.prompt, item.output),)) for item in fitting[:count]]


def _conversations(workload: Workload, count: int, arrivals: list[float], seed: int) -> list[Talk]:
    """`count` of the table's, from its beginning and again if it has fewer."""
    assert workload.conversations is not None
    table = traces.read_conversations(Path(workload.conversations))
    pauses = np.random.default_rng([seed, _PAUSES])
    talks: list[Talk] = []
    for number, at in enumerate(arrivals):
        turns = _within(workload, table[number % len(table)])
        thinking = [0.0, *pauses.exponential(workload.think_s, len(turns)).tolist()]
        asks = (
            Ask(0, f"turn {place + 1}" if place < 3 else "turn 4+", "", turn.said, turn.answer, pause)
            for place, (turn, pause) in enumerate(zip(turns, thinking, strict=False))
        )
        talks.append(Talk(at, tuple(asks)))
    return talks


def _within(workload: Workload, turns: list[Turn]) -> list[Turn]:
    """Those before the first whose whole prompt, all turns before it included, is too long."""
    kept: list[Turn] = []
    said = 0
    for turn in turns:
        said += turn.said
        if not _fits(workload, said, turn.answer):
            break
        kept.append(turn)
        said += turn.answer
    return kept


def _fits(workload: Workload, prompt: int, output: int) -> bool:
    return (workload.max_prompt is None or prompt <= workload.max_prompt) and (
        workload.max_total is None or prompt + output <= workload.max_total
    )


def _numbered(talks: list[Talk], workload: Workload, seed: int) -> list[Talk]:
    """With an index per ask and a tenant per talk."""
    tenants = [""] * len(talks)
    if workload.tenants is not None:
        tenants = mix.draw_shares(mix.parse_shares(workload.tenants), len(talks), seed)
    numbered: list[Talk] = []
    index = 0
    for talk, tenant in zip(talks, tenants, strict=True):
        asks: list[Ask] = []
        for ask in talk.asks:
            asks.append(msgspec.structs.replace(ask, index=index, tenant=tenant))
            index += 1
        numbered.append(Talk(talk.at, tuple(asks)))
    return numbered
