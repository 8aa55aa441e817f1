"""Attention of decode jobs on a CPU, reading K and V where they lie in the paged blocks.

A gather with `scaled_dot_product_attention` behind it moves K and V through memory three times, and torch's
matrix product of three query rows is slow on CPUs that MKL does not know. Measured on SmolLM2-135M, float32,
one thread, 8 jobs of 500 tokens, all layers: 46 -> 22 ms. numba compiles the two loops when a shape is first
met (0.8 s).

A block is too short for the CPU to guess what comes next, and the next one is somewhere else. So each block
is asked for while the one before is computed: 8 jobs of 256 tokens, both loops, 13.7 -> 7.3 ms.
"""

import functools
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.stage.prefetch import LINE_BYTES, prefetch

MAY_REORDER = {"reassoc", "contract", "nsz"}
"""What the compiler may do to sums, so that it can use vectors; infinities and NaN keep their meaning."""


class PagedDecodes(NamedTuple):
    """Jobs that compute one token each.

    rows: of the batch, one per job
    table: [jobs, blocks] int32, the blocks that a job sees, in order; what is behind its context is not read
    start: [jobs] int32, the position of the first slot in the table's first block
    first, context: [jobs] int32, a job sees the positions from `first` up to `context`
    """

    rows: slice
    table: NDArray[np.int32]
    start: NDArray[np.int32]
    first: NDArray[np.int32]
    context: NDArray[np.int32]


def serves(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether compiled loops fit. Several threads share the work of torch's own operators instead."""
    return device.type == "cpu" and dtype is torch.float32 and torch.get_num_threads() == 1


def attend(call: PagedDecodes, kv: NDArray[np.float32], layer: int, query: Tensor, scaling: float) -> Tensor:
    """kv: [blocks, layers, 2, block_size, kv_heads, head_dim]; query: [jobs, heads, head_dim]

    Returns the same shape as `query`.
    """
    jobs, heads, head_dim = query.shape
    score, weigh = _kernels(head_dim, heads // kv.shape[4])
    scores = torch.empty(jobs, heads, call.table.shape[1] * kv.shape[3])
    where = (kv, layer, call.table, call.start, call.first, call.context)
    score(query.contiguous().numpy(), *where, np.float32(scaling), scores.numpy())
    output = torch.zeros(jobs, heads, head_dim)
    weigh(torch.softmax(scores, -1).numpy(), *where, output.numpy())
    return output


@numba.njit(nogil=True)
def _following(table: Any, start: Any, context: Any, size: int, job: int, place: int) -> Any:
    """The block that is read after the one at this place; -1 after the last one."""
    if place + 1 < table.shape[1] and start[job] + (place + 1) * size < context[job]:
        return table[job, place + 1]
    return table[job + 1, 0] if job + 1 < table.shape[0] else -1


@numba.njit(nogil=True)
def _prefetch_slot(kv: Any, block: int, layer: int, half: int, slot: int) -> None:
    """half: 0 for K, 1 for V"""
    if block >= 0:
        row = kv.shape[4] * kv.shape[5]
        begin = (((block * kv.shape[1] + layer) * 2 + half) * kv.shape[3] + slot) * row
        for element in range(begin, begin + row, LINE_BYTES // 4):
            prefetch(kv, element)  # pyright: ignore[reportCallIssue]  # numba passes the typing context


@functools.lru_cache
def _kernels(head_dim: int, group: int) -> tuple[Any, Any]:
    """Both are constants of the compiled loops. group: query heads that share a KV head"""

    # Slots count from 0: where an index could be negative, numba tests it and the inner loop gets no vectors.

    @numba.njit(nogil=True, fastmath=MAY_REORDER)
    def score(query: Any, kv: Any, layer: int, table: Any, start: Any, first: Any, context: Any, scaling: Any,
              scores: Any) -> None:  # fmt: skip
        """scores: [jobs, heads, blocks * block_size], -inf where the job sees nothing"""
        size = kv.shape[3]
        for job in range(table.shape[0]):
            scores[job] = -np.inf
            for place in range(table.shape[1]):
                block, begin = table[job, place], start[job] + place * size
                following = _following(table, start, context, size, job, place)
                for slot in range(min(size, context[job] - begin)):
                    _prefetch_slot(kv, following, layer, 0, slot)
                    if begin + slot < first[job]:
                        continue
                    for kv_head in range(kv.shape[4]):
                        for member in range(group):
                            head = kv_head * group + member
                            total = np.float32(0)
                            for i in range(head_dim):
                                total += query[job, head, i] * kv[block, layer, 0, slot, kv_head, i]
                            scores[job, head, place * size + slot] = total * scaling

    @numba.njit(nogil=True, fastmath=MAY_REORDER)
    def weigh(weights: Any, kv: Any, layer: int, table: Any, start: Any, first: Any, context: Any,
              output: Any) -> None:  # fmt: skip
        """output: [jobs, heads, head_dim], zeros; becomes the weighted sum of V"""
        size = kv.shape[3]
        for job in range(table.shape[0]):
            for place in range(table.shape[1]):
                block, begin = table[job, place], start[job] + place * size
                following = _following(table, start, context, size, job, place)
                for slot in range(min(size, context[job] - begin)):
                    _prefetch_slot(kv, following, layer, 1, slot)
                    if begin + slot < first[job]:
                        continue
                    for kv_head in range(kv.shape[4]):
                        for member in range(group):
                            head = kv_head * group + member
                            weight = weights[job, head, place * size + slot]
                            for i in range(head_dim):
                                output[job, head, i] += weight * kv[block, layer, 1, slot, kv_head, i]

    return score, weigh
