"""Where an iteration reads and writes paged KV: computed once per step, used by every layer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.stage import paged_decode
from services.stage.batch import Span
from services.stage.paged_decode import PagedDecodes

_PADDING_WORTH_A_CALL = 16
"""Blocks of padding that cost as much as one more call: 4 us each against 60 us (SmolLM2 on one thread)."""

_GATHER_BYTES = 16 * 1024 * 1024
"""K and V that one call gathers: beyond the last-level cache they would travel through memory twice."""


class PagedKV:
    """The device tier as the kernel sees it.

    pages: [blocks * layers * 2, block_size * kv_heads * head_dim], one row per block, layer and K or V
    slots: [blocks * layers * 2 * block_size, kv_heads, head_dim], one row per token
    in_place: decode jobs read K and V where they lie, in `array`, which is the whole tier
    """

    def __init__(self, tensor: Tensor, first_layer: int) -> None:
        """tensor: [blocks, layers, 2, block_size, kv_heads, head_dim], contiguous."""
        _, self.layers, _, self.block_size, self.kv_heads, self.head_dim = tensor.shape
        self.first_layer = first_layer
        self.dtype = tensor.dtype
        self.device = tensor.device
        self.slots = tensor.view(-1, self.kv_heads, self.head_dim)
        self.pages = tensor.view(-1, self.block_size * self.kv_heads * self.head_dim)
        self.page_bytes = self.pages.shape[1] * tensor.element_size()
        self.in_place = paged_decode.serves(tensor.device, tensor.dtype)
        if self.in_place:
            self.array: NDArray[np.float32] = tensor.numpy()


@dataclass(frozen=True, slots=True)
class Decodes:
    """Jobs that compute one token each, attended to in one call.

    rows: of the batch, one per job
    pages: [layers, 2 * jobs * blocks] rows of `PagedKV.pages`: K of all jobs, then V
    mask: [jobs, 1, 1, blocks * block_size], 0 where the job sees the token and -inf elsewhere
    """

    rows: slice
    pages: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True)
class Prefill:
    """One job that computes several tokens.

    pages: [layers, 2 * blocks], or None when nothing was cached before: its keys are all in the batch
    mask: [tokens, keys], or None for plain causal attention
    """

    rows: slice
    pages: Tensor | None
    mask: Tensor | None


Call = PagedDecodes | Decodes | Prefill


class AttentionPlan:
    """write: [layers, 2, rows] rows of `PagedKV.slots` for the new K and V"""

    def __init__(self, spans: Sequence[Span], kv: PagedKV) -> None:
        self.kv = kv
        self._spans = spans
        self._calls: dict[int | None, list[Call]] = {}
        self.write = self._slots()

    def calls(self, window: int | None) -> list[Call]:
        """What to compute, in row order, for layers that see the last `window` tokens (None: all)."""
        if window not in self._calls:
            decodes = [span for span in self._spans if span.tokens == 1]
            self._calls[window] = [
                *self._all_decodes(decodes, window),
                *(self._prefill(span, window) for span in self._spans if span.tokens > 1),
            ]
        return self._calls[window]

    def _all_decodes(self, spans: list[Span], window: int | None) -> Iterator[Call]:
        if self.kv.in_place and spans:
            yield self._paged_decodes(spans, window)
        else:
            yield from (self._decodes(group, window) for group in self._grouped(spans, window))

    def _paged_decodes(self, spans: list[Span], window: int | None) -> PagedDecodes:
        visible = [self._visible(span, window) for span in spans]
        start = np.array([blocks.start * self.kv.block_size for blocks in visible], np.int32)
        context = np.array([span.context for span in spans], np.int32)
        first = start if window is None else np.maximum(context - window, start)
        return PagedDecodes(_rows(spans), _table(spans, visible), start, first, context)

    def _grouped(self, decodes: list[Span], window: int | None) -> list[list[Span]]:
        """Split jobs, which come by ascending context, where padding costs more than another call."""
        limit = max(1, _GATHER_BYTES // (2 * self.kv.page_bytes))
        groups: list[list[Span]] = []
        real = widest = 0
        for span in decodes:
            blocks = len(self._visible(span, window))
            jobs = len(groups[-1]) + 1 if groups else 1
            padded = max(widest, blocks) * jobs
            if not groups or padded - real - blocks > _PADDING_WORTH_A_CALL or padded > limit:
                groups.append([])
                real = widest = 0
            groups[-1].append(span)
            real, widest = real + blocks, max(widest, blocks)
        return groups

    def _visible(self, span: Span, window: int | None) -> range:
        """Indices into the table of the blocks that the job's new tokens attend to."""
        size = self.kv.block_size
        oldest = 0 if window is None else max(0, span.start + 1 - window)
        return range(oldest // size, -(-span.context // size))

    def _decodes(self, spans: list[Span], window: int | None) -> Decodes:
        visible = [self._visible(span, window) for span in spans]
        table = _table(spans, visible)
        size = self.kv.block_size
        context = np.array([[span.context] for span in spans])
        position = np.array([[blocks.start * size] for blocks in visible]) + np.arange(table.shape[1] * size)
        seen = _seen(position, context - 1, window)
        pages = self._pages(table.reshape(-1).astype(np.int64))
        return Decodes(_rows(spans), pages, self._mask(seen[:, None, None]))

    def _prefill(self, span: Span, window: int | None) -> Prefill:
        rows = slice(span.row, span.row + span.tokens)
        query = np.arange(span.start, span.context)[:, None]
        if span.start == 0:
            if window is None or span.tokens <= window:
                return Prefill(rows, None, None)
            return Prefill(rows, None, self._mask(_seen(query.T, query, window)))
        blocks = self._visible(span, window)
        size = self.kv.block_size
        position = np.arange(blocks.start * size, blocks.stop * size)
        pages = self._pages(span.table[blocks.start : blocks.stop].astype(np.int64))
        return Prefill(rows, pages, self._mask(_seen(position, query, window)))

    def _slots(self) -> Tensor:
        size = self.kv.block_size
        slots: list[np.ndarray] = []
        for span in self._spans:
            position = np.arange(span.start, span.context)
            block = span.table[position // size].astype(np.int64)
            slots.append(block * (self.kv.layers * 2 * size) + position % size)
        return self._for_all_layers(np.concatenate(slots), size)

    def _pages(self, blocks: np.ndarray) -> Tensor:
        base = blocks * (self.kv.layers * 2)
        return self._for_all_layers(base, 1).flatten(1)

    def _for_all_layers(self, base: np.ndarray, stride: int) -> Tensor:
        """[n] rows of the first layer's K -> [layers, 2, n] rows of every layer's K and V."""
        halves = torch.arange(self.kv.layers * 2, device=self.kv.device).view(-1, 2, 1) * stride
        return torch.from_numpy(base).to(self.kv.device) + halves

    def _mask(self, seen: np.ndarray) -> Tensor:
        mask = torch.zeros(seen.shape, dtype=self.kv.dtype, device=self.kv.device)
        return mask.masked_fill_(torch.from_numpy(~seen).to(self.kv.device), -torch.inf)


def _rows(spans: list[Span]) -> slice:
    return slice(spans[0].row, spans[-1].row + 1)


def _table(spans: list[Span], visible: list[range]) -> NDArray[np.int32]:
    """[jobs, blocks of the job that sees most]; what others do not have is block 0"""
    table = np.zeros((len(spans), max(map(len, visible))), np.int32)
    for row, (span, blocks) in enumerate(zip(spans, visible, strict=True)):
        table[row, : len(blocks)] = span.table[blocks.start : blocks.stop]
    return table


def _seen(position: np.ndarray, query: np.ndarray, window: int | None) -> np.ndarray:
    """Whether the token at `query` attends to the one at `position`."""
    seen = position <= query
    return seen if window is None else seen & (position > query - window)
