"""Draws the next tokens of a batch.

One uniform number per row, made from (seed, position) alone, picks the token by the inverse of the
cumulative distribution: the draw depends neither on who shares the batch nor on a device's generator.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from shared.messages import Sampling

_CANDIDATES = (128, 4096)
"""Most likely tokens examined before all are: 2 and 11 ms for 16 rows of 49,152, against 60 ms for all."""

_COLDEST = 1e-30
"""Lowest temperature that float32 can divide by; long before it only the most likely token is left."""

_MASK = (1 << 64) - 1


def sample(logits: Tensor, samplings: Sequence[Sampling], positions: Sequence[int]) -> list[int]:
    """One token per row.

    logits: [rows, vocab]; positions: of the tokens to be drawn, counted in prompt + output
    """
    tokens: list[int] = logits.argmax(-1).tolist()
    by_filter: dict[bool, list[int]] = {False: [], True: []}
    for row, sampling in enumerate(samplings):
        if not sampling.greedy:
            by_filter[sampling.top_k > 0 or sampling.top_p < 1.0].append(row)
    for filtered, rows in by_filter.items():
        if rows:
            chosen = [samplings[row] for row in rows]
            weights = _weights(logits[rows], chosen)
            uniform = [uniform_of(samplings[row].seed, positions[row]) for row in rows]
            drawn: list[int] = (
                _draw_filtered(weights, chosen, uniform) if filtered else _invert(weights, uniform).tolist()
            )
            for row, token in zip(rows, drawn, strict=True):
                tokens[row] = token
    return tokens


def uniform_of(seed: int, position: int) -> float:
    """In [0, 1), by SplitMix64: the same everywhere, unrelated for neighbouring seeds and positions."""
    return (_mix(_mix(seed & _MASK) + position) >> 11) * 2.0**-53


def _mix(state: int) -> int:
    z = (state + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def _weights(logits: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """[rows, vocab] float32 probabilities, up to a factor per row: the most likely token has weight 1."""
    divisors = [max(s.temperature, _COLDEST) for s in samplings]
    temperature = torch.tensor(divisors, device=logits.device).unsqueeze(1)
    logits = logits.float()
    # The maximum goes first: a tiny temperature must not make infinities.
    weights = ((logits - logits.amax(-1, keepdim=True)) / temperature).exp_()
    if any(s.min_p > 0.0 for s in samplings):  # before top_k and top_p, which see only what is left (vLLM)
        min_p = torch.tensor([s.min_p for s in samplings], device=logits.device).unsqueeze(1)
        weights.masked_fill_(weights < min_p, 0.0)
    return weights


def _invert(weights: Tensor, uniform: Sequence[float]) -> Tensor:
    """[rows] int64: the index at which each row's cumulative weight passes `uniform` of its total."""
    cumulative = weights.cumsum(-1)
    total = cumulative[:, -1:]
    target = torch.tensor(uniform, dtype=torch.float64, device=weights.device).unsqueeze(1) * total
    # Rounding to float32 may reach the total, behind which no token lies.
    target = torch.minimum(target.float(), torch.nextafter(total, torch.zeros_like(total)))
    # The clamp is for logits that are not numbers: a broken model must still give a token id.
    return torch.searchsorted(cumulative, target, right=True).squeeze(1).clamp_(max=weights.shape[1] - 1)


def _draw_filtered(weights: Tensor, samplings: Sequence[Sampling], uniform: Sequence[float]) -> list[int]:
    """Draw under top_k and top_p, ranking no more tokens of a row than it takes to decide."""
    vocab = weights.shape[1]
    total = weights.sum(-1)
    whole: list[float] = total.tolist()
    tokens = [0] * len(samplings)
    undecided = list(range(len(samplings)))
    for candidates in (*(few for few in _CANDIDATES if few < vocab), vocab):
        if not undecided:
            break
        ranked = weights[undecided].topk(candidates)
        mass = ranked.values.sum(-1).tolist()
        places = [
            place
            for place, row in enumerate(undecided)
            if _is_enough(samplings[row], candidates, vocab, mass[place] / whole[row])
        ]
        if not places:
            continue
        rows = [undecided[place] for place in places]
        kept = _filter(ranked.values[places], total[rows], vocab, [samplings[row] for row in rows])
        columns = _invert(kept, [uniform[row] for row in rows])
        drawn: list[int] = ranked.indices[places].gather(1, columns.unsqueeze(1)).squeeze(1).tolist()
        for row, token in zip(rows, drawn, strict=True):
            tokens[row] = token
        undecided = [row for row in undecided if row not in rows]
    return tokens


def _is_enough(sampling: Sampling, candidates: int, vocab: int, share: float) -> bool:
    """Whether the most likely `candidates`, which hold `share` of all weight, contain every allowed token."""
    top_k = _top_k(sampling, vocab)
    return candidates == vocab or top_k <= candidates or (top_k == vocab and share >= sampling.top_p)


def _top_k(sampling: Sampling, vocab: int) -> int:
    return sampling.top_k if 0 < sampling.top_k < vocab else vocab


def _filter(values: Tensor, total: Tensor, vocab: int, samplings: Sequence[Sampling]) -> Tensor:
    """Zero what top_k excludes, then what top_p excludes of the rest, renormalised (vLLM's order).

    values: [rows, candidates] weights, descending; total: [rows] weight of the whole vocabulary
    """
    top_k = torch.tensor([_top_k(s, vocab) for s in samplings], device=values.device).unsqueeze(1)
    top_p = torch.tensor([s.top_p for s in samplings], device=values.device).unsqueeze(1)
    values = values * (torch.arange(values.shape[1], device=values.device) < top_k)
    pool = torch.where(top_k < vocab, values.sum(-1, keepdim=True), total.unsqueeze(1))
    before = values.cumsum(-1) - values
    kept = values * (before < top_p * pool)
    kept[:, 0] = values[:, 0]  # the most likely token always stays
    return kept
