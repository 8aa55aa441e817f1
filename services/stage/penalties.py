"""What a request's fields do to the logits before a token is drawn from them.

In vLLM's order: bars (min_tokens), logit_bias, repetition penalty, frequency and presence penalty. Only the
entries of tokens that are concerned are touched, those of all rows at once: the cost grows with the history,
not with the vocabulary.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from shared.messages import Sampling, TokenHistory

_NOTHING = TokenHistory()
_Ids = np.ndarray
"""int64"""


def adjust(logits: Tensor, samplings: Sequence[Sampling], histories: Sequence[TokenHistory | None]) -> Tensor:
    """[rows, vocab] logits to draw from; `logits` itself if no row asks for a change, else a float32 copy."""
    if not any(
        history or sampling.logit_bias for sampling, history in zip(samplings, histories, strict=True)
    ):
        return logits
    past = [history or _NOTHING for history in histories]
    logits = logits.to(torch.float32, copy=True).contiguous()
    entries = _Entries(logits)

    bias = [sampling.logit_bias for sampling in samplings]
    at, row, _ = entries.of([_array(list(each)) for each in bias])
    if len(at):
        # `of` sorts the ids of a row.
        added = [each[token] for each in bias for token in sorted(each)]
        entries.put(at, entries.get(at) + entries.column(added))

    at, row, _ = entries.of([_unpacked(each.seen) for each in past])
    if len(at):
        penalty = entries.column([s.repetition_penalty for s in samplings])[entries.index(row)]
        value = entries.get(at)
        value = torch.where(value > 0, value / penalty, value * penalty)
        # A tiny penalty must not make two infinities, whose difference is no number.
        entries.put(at, value.clamp(max=torch.finfo(torch.float32).max))

    at, row, count = entries.of([_unpacked(each.output) for each in past])
    if len(at):
        place = entries.index(row)
        frequency = entries.column([s.frequency_penalty for s in samplings])[place]
        presence = entries.column([s.presence_penalty for s in samplings])[place]
        entries.put(at, entries.get(at) - frequency * entries.column(count) - presence)

    at, _, _ = entries.of([_array(each.barred) for each in past])
    if len(at):
        entries.put(at, entries.column([-torch.inf]).expand(len(at)))
    return logits


class _Entries:
    """Single logits, addressed by row * vocab + token id."""

    def __init__(self, logits: Tensor) -> None:
        self._flat = logits.view(-1)
        self._vocab = logits.shape[1]

    def of(self, ids: Sequence[_Ids]) -> tuple[_Ids, _Ids, _Ids]:
        """Address, row and count of every different token id of every row, ordered by address."""
        keys = [each + row * self._vocab for row, each in enumerate(ids)]
        at, count = np.unique(np.concatenate(keys), return_counts=True)
        return at, at // self._vocab, count

    def get(self, at: _Ids) -> Tensor:
        return self._flat[self.index(at)]

    def put(self, at: _Ids, values: Tensor) -> None:
        self._flat[self.index(at)] = values

    def index(self, numbers: _Ids) -> Tensor:
        return torch.from_numpy(numbers).to(self._flat.device)

    def column(self, numbers: Sequence[float] | np.ndarray) -> Tensor:
        return torch.as_tensor(numbers, dtype=torch.float32).to(self._flat.device)


def _unpacked(ids: bytes) -> _Ids:
    return np.frombuffer(ids, "<i4").astype(np.int64)


def _array(ids: Sequence[int]) -> _Ids:
    return np.array(ids, np.int64)
