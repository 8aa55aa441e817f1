"""Tensor parallelism: which part of each of a stage's tensors one of its ranks holds.

Heads, MLP features and vocabulary are split into neighbouring parts that differ by one at most. Only heads
must come out even: the ranks' KV blocks are of one size.
"""

from dataclasses import dataclass

from shared.errors import ConfigError


def share(total: int, ranks: int, rank: int) -> range:
    """The indices of `total` that belong to `rank`; the first ranks take the remainder."""
    size, remainder = divmod(total, ranks)
    first = rank * size + min(rank, remainder)
    return range(first, first + size + (rank < remainder))


@dataclass(frozen=True, slots=True)
class Cut:
    """What a rank reads of a tensor: the indices `part` of dimension `dim`, which has `whole` of them."""

    dim: int
    whole: int
    part: range


def check_heads(heads: int, kv_heads: int, ranks: int) -> None:
    """Raises ConfigError unless every rank gets the same number of attention heads, with their KV heads."""
    if heads % ranks == 0 and kv_heads % ranks == 0:
        return
    possible = [n for n in range(1, kv_heads + 1) if heads % n == 0 and kv_heads % n == 0]
    raise ConfigError(
        f"parallel.tensor_parallel: {ranks} ranks cannot share the model's {heads} attention heads and "
        f"{kv_heads} KV heads evenly, set it to {_one_of(possible)}"
    )


def _one_of(numbers: list[int]) -> str:
    *others, last = map(str, numbers)
    return f"{', '.join(others)} or {last}" if others else last
