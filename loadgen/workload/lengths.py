"""How long prompts and answers are, tokens. All draws are seeded; a longer draw begins like a shorter one."""

from collections.abc import Callable
from functools import cache, partial
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from shared.errors import ConfigError

Lengths = npt.NDArray[np.int64]
"""Shape [count, 2]: prompt and output tokens."""

Floats = npt.NDArray[np.float64]

Sampler = Callable[[int, int], Lengths]
"""(count, seed) -> lengths"""

MAX_PROMPT, MAX_TOTAL = 1024, 2048
"""FastServe's artifact drops longer requests."""

_STREAM = 2
_CHUNK = 1024
_FIT_SAMPLES = 1 << 16


class Shape(Protocol):
    """A distribution whose scale is still open."""

    def logs(self, draw: np.random.Generator, count: int) -> Floats:
        """Logarithms of prompt and output, shape [count, 2]."""
        ...


class Lognormal(msgspec.Struct, frozen=True):
    """sigmas: of log prompt and log output"""

    sigmas: tuple[float, float]

    def logs(self, draw: np.random.Generator, count: int) -> Floats:
        return draw.standard_normal((count, 2)) * self.sigmas


class Exponential(msgspec.Struct, frozen=True):
    """The least that can be assumed when only the mean is known: of all shapes with that mean it has the
    greatest entropy.
    """

    def logs(self, draw: np.random.Generator, count: int) -> Floats:
        return np.log(draw.exponential(1.0, (count, 2)))


class Quantiles(msgspec.Struct, frozen=True):
    """Lengths at the shares `at` of all requests, straight lines between their logarithms; prompt and output
    are independent, as they are in ShareGPT (correlation 0.02).
    """

    at: tuple[float, ...]
    prompt: tuple[int, ...]
    output: tuple[int, ...]

    def logs(self, draw: np.random.Generator, count: int) -> Floats:
        shares = draw.random((count, 2))
        columns = (
            np.interp(shares[:, i], self.at, np.log(tokens))
            for i, tokens in enumerate((self.prompt, self.output))
        )
        return np.stack(list(columns), axis=1)


class Scaled(msgspec.Struct, frozen=True):
    """factors: by which prompt and output of the shape are multiplied"""

    shape: Shape
    factors: tuple[float, float]

    def draw(self, draw: np.random.Generator, count: int) -> Lengths:
        """Up to `count` lengths: those beyond the artifact's limits are dropped."""
        values = np.exp(self.shape.logs(draw, count)) * self.factors
        tokens = np.maximum(1, np.rint(values)).astype(np.int64)
        return tokens[(tokens[:, 0] <= MAX_PROMPT) & (tokens.sum(axis=1) <= MAX_TOTAL)]

    def sample(self, count: int, seed: int) -> Lengths:
        draw = np.random.default_rng([seed, _STREAM])
        kept: list[Lengths] = []
        while sum(map(len, kept)) < count:
            kept.append(self.draw(draw, _CHUNK))
        return np.concatenate(kept)[:count]


@cache
def fitted(shape: Shape, means: tuple[float, float]) -> Scaled:
    """The shape with these means of prompt and output, tokens, after the artifact's limits."""
    factors = np.array(means) / np.exp(shape.logs(np.random.default_rng(0), _FIT_SAMPLES)).mean(axis=0)
    for _ in range(40):  # each step closes most of the gap; the two means hardly influence each other
        scaled = Scaled(shape, (float(factors[0]), float(factors[1])))
        factors *= np.array(means) / scaled.draw(np.random.default_rng(0), _FIT_SAMPLES).mean(axis=0)
    return Scaled(shape, (float(factors[0]), float(factors[1])))


LOGNORMAL = Lognormal((1.21, 1.09))
"""As fitted to the logarithms of ShareGPT's first turns (traces/README.md). It has fewer short answers than
they have, and those count most in latency per output token.
"""

MEASURED = Quantiles(
    at=(0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0),
    prompt=(1, 6, 8, 11, 15, 22, 31, 42, 58, 84, 122, 203, 384, 575, 802, 902, 1024),
    output=(2, 5, 15, 36, 66, 168, 305, 391, 469, 551, 632, 737, 867, 933, 976, 1002, 1024),
)
"""Of the same 5,362 first turns."""

SHAREGPT_MEANS, ALPACA_MEANS = (161.0, 338.0), (19.0, 58.0)
"""FastServe's means of prompt and output, tokens; of Alpaca nothing else is published."""


def _paper(shape: Shape, means: tuple[float, float], count: int, seed: int) -> Lengths:
    return fitted(shape, means).sample(count, seed)


def zipf(count: int, seed: int, theta: float = 1.0, longest: int = 1024) -> Lengths:
    """FastServe v1: both lengths from 1..longest with weights rank^-theta, the shortest most likely."""
    weights = np.arange(1, longest + 1, dtype=np.float64) ** -theta
    draw = np.random.default_rng([seed, _STREAM])
    return 1 + np.searchsorted(np.cumsum(weights) / weights.sum(), draw.random((count, 2)))


def uniform(count: int, seed: int, prompt: tuple[int, int], output: tuple[int, int]) -> Lengths:
    """Both ends included."""
    draw = np.random.default_rng([seed, _STREAM])
    return draw.integers([prompt[0], output[0]], [prompt[1] + 1, output[1] + 1], (count, 2))


def bimodal(
    count: int, seed: int, prompt: int = 161, short: int = 32, long: int = 1024, long_share: float = 0.3
) -> Lengths:
    """Short and long answers in one mix; prompts are alike."""
    draw = np.random.default_rng([seed, _STREAM])
    outputs = np.where(draw.random(count) < long_share, long, short)
    return np.stack([np.full(count, prompt), outputs], axis=1)


def constant(count: int, seed: int, prompt: int, output: int) -> Lengths:
    """All alike: the case in which preemption cannot help."""
    return np.full((count, 2), (prompt, output))


def resampled(count: int, seed: int, table: Lengths) -> Lengths:
    """Rows of a length table, drawn with replacement."""
    draw = np.random.default_rng([seed, _STREAM])
    return table[draw.integers(0, len(table), count)]


NAMED: dict[str, Sampler] = {
    "sharegpt": partial(_paper, MEASURED, SHAREGPT_MEANS),
    "alpaca": partial(_paper, Exponential(), ALPACA_MEANS),
    "sharegpt-lognormal": partial(_paper, LOGNORMAL, SHAREGPT_MEANS),
    "alpaca-lognormal": partial(_paper, LOGNORMAL, ALPACA_MEANS),
    "zipf": zipf,
    "uniform": partial(uniform, prompt=(16, 306), output=(16, 660)),
    "bimodal": bimodal,
    "constant": partial(constant, prompt=161, output=338),
}
"""uniform, bimodal and constant have ShareGPT's means: comparisons of shape alone."""


def named(name: str) -> Sampler:
    """A sampler by name, or `constant:PROMPT:OUTPUT`.

    Raises ConfigError if there is no such name.
    """
    kind, *numbers = name.split(":")
    if kind == "constant" and len(numbers) == 2 and all(text.isdigit() and int(text) for text in numbers):
        return partial(constant, prompt=int(numbers[0]), output=int(numbers[1]))
    if name not in NAMED:
        raise ConfigError(f"lengths {name!r}: known are {', '.join(NAMED)} and constant:PROMPT:OUTPUT")
    return NAMED[name]
