"""One iteration's jobs as a flat batch of rows.

Row order: decode jobs first, by context, then prefills as planned. Every stage derives the same order
from the same plan, so activations travel without it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shared.messages import Sampling, StepJob, TokenHistory


@dataclass(frozen=True, slots=True)
class Span:
    """One job's rows.

    row: its first row; tokens: how many
    start: tokens whose KV is cached already
    table: [blocks] int32, its block ids in order
    """

    row: int
    tokens: int
    start: int
    table: np.ndarray

    @property
    def context(self) -> int:
        """Tokens whose KV it holds after this iteration."""
        return self.start + self.tokens


@dataclass(frozen=True, slots=True)
class Draw:
    """A token to be sampled.

    index: which of the plan's sampling jobs it is for
    row: whose logits; position: of the new token
    """

    index: int
    row: int
    position: int
    sampling: Sampling
    history: TokenHistory | None


@dataclass(frozen=True, slots=True)
class Batch:
    """tokens, positions: [1, rows] int64"""

    tokens: Tensor
    positions: Tensor
    spans: list[Span]
    draws: list[Draw]

    @classmethod
    def of(cls, jobs: Sequence[StepJob], device: torch.device) -> "Batch":
        spans: list[Span] = []
        draws: list[Draw] = []
        tokens: list[int] = []
        draw_index = {job.job_id: i for i, job in enumerate(job for job in jobs if job.sampling is not None)}
        for job in sorted(jobs, key=_decodes_by_context_then_prefills):
            table = np.frombuffer(job.table, dtype="<i4")
            span = Span(len(tokens), len(job.tokens), job.start, table)
            spans.append(span)
            tokens += job.tokens
            if job.sampling is not None:
                index, row = draw_index[job.job_id], len(tokens) - 1
                draws.append(Draw(index, row, span.context, job.sampling, job.history))
        positions = np.concatenate([np.arange(span.start, span.context) for span in spans])
        return cls(
            torch.tensor([tokens], dtype=torch.int64, device=device),
            torch.from_numpy(positions).unsqueeze(0).to(device),
            spans,
            draws,
        )


def _decodes_by_context_then_prefills(job: StepJob) -> tuple[bool, int]:
    is_prefill = len(job.tokens) > 1
    return is_prefill, 0 if is_prefill else job.start
