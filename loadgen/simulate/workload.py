"""What is asked of the system: requests with arrival times and the lengths that only the simulator knows."""

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from loadgen.simulate.arrivals import gamma
from loadgen.simulate.lengths import Lengths, Sampler


class Request(msgspec.Struct, frozen=True, gc=False):
    """arrival: seconds; prompt, output: tokens; priority, tenant: as in Submit"""

    arrival: float
    prompt: int
    output: int
    priority: int = 0
    tenant: str = ""


def requests(arrivals: npt.NDArray[np.float64], lengths: Lengths) -> list[Request]:
    return [
        Request(arrival, prompt, output)
        for arrival, (prompt, output) in zip(arrivals.tolist(), lengths.tolist(), strict=True)
    ]


def synthetic(sampler: Sampler, count: int, rate: float, cv: float, seed: int) -> list[Request]:
    """`count` requests at `rate` a second; the same seed gives the same requests at every rate."""
    return requests(gamma(count, rate, cv, seed), sampler(count, seed))


def within(items: Sequence[Request], max_prompt: int, max_total: int) -> list[Request]:
    """Without those that the limits (tokens) refuse."""
    return [item for item in items if item.prompt <= max_prompt and item.prompt + item.output <= max_total]
