"""Requests with arrival times and the lengths that only the client knows."""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from loadgen.workload.arrivals import gamma
from loadgen.workload.lengths import Lengths, Sampler


class Request(msgspec.Struct, frozen=True, gc=False):
    """arrival: seconds; prompt, output: tokens; priority, tenant: as in Submit"""

    arrival: float
    prompt: int
    output: int
    priority: int = 0
    tenant: str = ""


class Turn(msgspec.Struct, frozen=True):
    """Of a conversation. said: new tokens of the user; answer: output tokens"""

    said: int
    answer: int


_CHUNK = 4096


def requests(arrivals: npt.NDArray[np.float64], lengths: Lengths) -> Iterator[Request]:
    """One after another: a million of them need not be in memory at once."""
    for begin in range(0, len(arrivals), _CHUNK):
        chunk = slice(begin, begin + _CHUNK)
        for arrival, (prompt, output) in zip(arrivals[chunk].tolist(), lengths[chunk].tolist(), strict=True):
            yield Request(arrival, prompt, output)


def stream(sampler: Sampler, count: int, rate: float, cv: float, seed: int) -> Iterator[Request]:
    """`count` requests at `rate` a second; the same seed gives the same requests at every rate."""
    return requests(gamma(count, rate, cv, seed), sampler(count, seed))


def synthetic(sampler: Sampler, count: int, rate: float, cv: float, seed: int) -> list[Request]:
    """As `stream`, all at once."""
    return list(stream(sampler, count, rate, cv, seed))


def within(items: Sequence[Request], max_prompt: int, max_total: int) -> list[Request]:
    """Without those that the limits (tokens) refuse."""
    return [item for item in items if item.prompt <= max_prompt and item.prompt + item.output <= max_total]
