"""Classes of requests, in one line of text.

80% short=32:16, 20% long=256:256      prompt:output tokens
16-64:8-32                             uniform, both ends included
90% sharegpt, 10% alpaca               named lengths (loadgen/workload/lengths.py)
file=/data/burstgpt.csv                rows of a trace or length table, drawn with replacement
(SHARE% )(NAME=)LENGTHS, …             shares sum to 100; a single class needs none
"""

import re
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from loadgen.workload import lengths, traces
from loadgen.workload.lengths import Lengths, Sampler
from shared.errors import ConfigError

_CLASSES = 5
"""Stream of the seed that classes are drawn from; arrivals and lengths have their own."""

_ITEM = re.compile(r"(?:(?P<share>\d+(?:\.\d+)?)\s*%\s*)?(?:(?P<name>[\w-]+)\s*=\s*)?(?P<what>\S.*)")
_SPAN = re.compile(r"(\d+)(?:-(\d+))?:(\d+)(?:-(\d+))?")


class Class(msgspec.Struct, frozen=True):
    """share: of all requests, 0 to 1"""

    name: str
    share: float
    sampler: Sampler


def parse_mix(text: str) -> list[Class]:
    """Raises ConfigError for what is no mix, with the part that is wrong."""
    return [Class(name, share, _sampler(what, text)) for name, share, what in _items(text)]


def parse_shares(text: str) -> dict[str, float]:
    """Shares by name, of `70% a, 30% b`. Raises ConfigError."""
    return {what: share for _, share, what in _items(text)}


def _items(text: str) -> list[tuple[str, float, str]]:
    """(name, share, what) of each part."""
    parts = [part.strip() for part in text.split(",")]
    items: list[tuple[str, float, str]] = []
    for part in parts:
        match = _ITEM.fullmatch(part)
        if match is None or (match["share"] is None and len(parts) > 1):
            raise ConfigError(f"{text!r}: {part!r} is not written as SHARE% LENGTHS or SHARE% NAME=LENGTHS")
        what = match["what"].strip()
        items.append((match["name"] or what, float(match["share"] or 100) / 100, what))
    total = sum(share for _, share, _ in items)
    if abs(total - 1) > 1e-6:
        raise ConfigError(f"{text!r}: the shares sum to {100 * total:g} %, not to 100 %")
    if len({name for name, _, _ in items}) < len(items):
        raise ConfigError(f"{text!r}: two parts have one name")
    return items


def _sampler(what: str, text: str) -> Sampler:
    match = _SPAN.fullmatch(what)
    if match is None:
        if "/" in what or "." in what:
            return partial(lengths.resampled, table=traces.read(Path(what)).lengths())
        return lengths.named(what)
    low, high, least, most = (int(group) if group else 0 for group in match.groups())
    high, most = high or low, most or least
    if not (1 <= low <= high and 1 <= least <= most):
        raise ConfigError(f"{text!r}: {what!r} has an empty span; lengths are at least 1 token")
    return partial(lengths.uniform, prompt=(low, high), output=(least, most))


def draw(classes: list[Class], count: int, seed: int) -> tuple[list[str], Lengths]:
    """Class and lengths (shape [count, 2]) of each request. A longer draw begins like a shorter one."""
    which = _choose([item.share for item in classes], count, [seed, _CLASSES])
    result = np.empty((count, 2), dtype=np.int64)
    for number, item in enumerate(classes):
        mine = which == number
        result[mine] = item.sampler(count, seed + number)[mine]
    return [classes[number].name for number in which], result


def draw_shares(shares: dict[str, float], count: int, seed: int) -> list[str]:
    """A name for each request."""
    names = list(shares)
    return [names[number] for number in _choose(list(shares.values()), count, [seed, _CLASSES + 1])]


def _choose(shares: list[float], count: int, seed: list[int]) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    edges = np.cumsum(shares)[:-1]
    return np.searchsorted(edges, np.random.default_rng(seed).random(count), side="right")
