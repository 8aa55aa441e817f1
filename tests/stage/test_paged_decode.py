"""The kernels that read K and V in place give what a plain softmax over the same tokens gives."""

import numpy as np
import pytest
import torch
from torch import Tensor

from services.stage.attention_plan import AttentionPlan, PagedKV
from services.stage.batch import Span
from services.stage.paged_decode import PagedDecodes, attend

BLOCK = 4
LAYERS = 3


def make_kv(blocks: int, kv_heads: int, head_dim: int) -> PagedKV:
    torch.set_num_threads(1)  # of a process with more, torch's attention has the work
    generator = torch.Generator().manual_seed(blocks)
    shape = (blocks, LAYERS, 2, BLOCK, kv_heads, head_dim)
    return PagedKV(torch.randn(shape, generator=generator), first_layer=0)


def make_spans(contexts: list[int], blocks: int) -> list[Span]:
    """Decode jobs, whose blocks are scattered over the tier."""
    free = iter(np.random.default_rng(1).permutation(blocks).astype(np.int32))
    return [
        Span(row, 1, context - 1, np.array([next(free) for _ in range(-(-context // BLOCK))], np.int32))
        for row, context in enumerate(contexts)
    ]


def expected(kv: PagedKV, span: Span, layer: int, query: Tensor, window: int | None) -> Tensor:
    """query: [heads, head_dim]; in float64, over the tokens that the job sees and nothing else."""
    first = 0 if window is None else max(0, span.context - window)
    seen = range(first, span.context)
    blocks = [int(span.table[position // BLOCK]) for position in seen]
    slots = [position % BLOCK for position in seen]
    keys, values = (
        torch.from_numpy(kv.array)[blocks, layer, half, slots]
        .double()
        .repeat_interleave(len(query) // kv.kv_heads, dim=1)
        for half in (0, 1)
    )
    weights = torch.softmax(torch.einsum("hd,thd->ht", query.double(), keys) * 0.3, -1)
    return torch.einsum("ht,thd->hd", weights, values)


@pytest.mark.parametrize("window", [None, 1, 5, 8, 1000])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(9, 3, 64), (4, 4, 16), (8, 1, 40), (6, 2, 80)])
def test_equals_a_plain_softmax(heads: int, kv_heads: int, head_dim: int, window: int | None) -> None:
    contexts = [1, 3, 4, 5, 8, 29]
    kv = make_kv(24, kv_heads, head_dim)
    spans = make_spans(contexts, 24)
    (call,) = AttentionPlan(spans, kv).calls(window)
    assert isinstance(call, PagedDecodes)
    query = torch.randn(len(spans), heads, head_dim, generator=torch.Generator().manual_seed(7))
    for layer in range(LAYERS):
        output = attend(call, kv.array, layer, query, 0.3)
        for span, row, output_row in zip(spans, query, output, strict=True):
            torch.testing.assert_close(
                output_row.double(), expected(kv, span, layer, row, window), atol=2e-6, rtol=2e-6
            )


def test_what_a_job_does_not_see_cannot_harm_it() -> None:
    """Neither the rest of its last block, nor a block of another job whose numbers have overflowed."""
    kv = make_kv(8, 2, 16)
    sick, healthy = make_spans([9, 6], 8)
    (call,) = AttentionPlan([sick, healthy], kv).calls(None)
    assert isinstance(call, PagedDecodes)
    query = torch.randn(2, 4, 16, generator=torch.Generator().manual_seed(7))
    before = attend(call, kv.array, 0, query, 0.3)[1]
    kv.array[healthy.table[-1], :, :, 2:] = np.nan
    kv.array[sick.table] = np.inf
    assert torch.equal(attend(call, kv.array, 0, query, 0.3)[1], before)
