"""Log-probabilities of the drawn tokens under the model's own distribution (vLLM's `raw_logprobs`)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from shared.messages import Sampling, TokenLogprobs


def logprobs_of(
    logits: Tensor, tokens: Sequence[int], samplings: Sequence[Sampling]
) -> list[TokenLogprobs | None]:
    """One per row, None where none is asked for; an empty list if no row asks.

    logits: [rows, vocab] as the model gave them
    """
    rows = [row for row, sampling in enumerate(samplings) if sampling.logprobs is not None]
    if not rows:
        return []
    asked = logits if len(rows) == len(samplings) else logits[rows]
    asked = asked.float()
    # Of the vocabulary only what is reported is normalised.
    normaliser = asked.logsumexp(-1, keepdim=True)
    drawn = torch.tensor([[tokens[row]] for row in rows], device=asked.device)
    chosen: list[float] = (asked.gather(1, drawn) - normaliser).squeeze(1).tolist()
    most = min(max(samplings[row].logprobs or 0 for row in rows), asked.shape[1])
    top = asked.topk(most)
    top_ids: list[list[int]] = top.indices.tolist()
    top_logprobs: list[list[float]] = (top.values - normaliser).tolist()

    out: list[TokenLogprobs | None] = [None] * len(samplings)
    for place, row in enumerate(rows):
        count = samplings[row].logprobs
        out[row] = TokenLogprobs(chosen[place], top_ids[place][:count], top_logprobs[place][:count])
    return out
