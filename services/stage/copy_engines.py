"""How a directive's bytes move: by the processor, or by CUDA's copy streams."""

import ctypes
from typing import Protocol

import torch
from torch import Tensor

from services.stage.tiers import Tiers
from shared.messages import Direction, Directive, Move


class CopyEngine(Protocol):
    def copy(self, directive: Directive) -> None:
        """Called by a copy thread; returns when the bytes are there. Raises IndexError for unknown blocks."""
        ...


def engine_for(tiers: Tiers) -> CopyEngine:
    return _CudaEngine(tiers) if tiers.device.is_cuda else _CpuEngine(tiers)


class _CpuEngine:
    """memmove by address, which lets other threads run meanwhile.

    Slicing tensors and copying the slices takes five times as long per move, the bytes aside
    (`python -m loadgen.copy_bandwidth`).
    """

    def __init__(self, tiers: Tiers) -> None:
        self._block_bytes = tiers.block_bytes
        self._tiers = tiers  # the addresses are good while these live
        device, host = ((tier.data_ptr(), len(tier)) for tier in (tiers.device, tiers.host))
        self._ends = {Direction.OUT: (*device, *host), Direction.IN: (*host, *device)}

    def copy(self, directive: Directive) -> None:
        source, source_blocks, target, target_blocks = self._ends[directive.direction]
        size = self._block_bytes
        for move in directive.moves:
            _check(move, source_blocks, target_blocks)
            ctypes.memmove(target + move.dst * size, source + move.src * size, move.count * size)


class _CudaEngine:
    """One stream per direction: both copy engines of the card can be busy at once.

    They do not wait for the compute stream. A step has finished on the device before its end is known to
    anybody, and no directive touches blocks of a step that has not: waiting for what is queued there would
    only put the copy behind the very step that it is to be hidden by.
    """

    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers
        self._streams = {direction: torch.cuda.Stream(tiers.device.device) for direction in Direction}

    def copy(self, directive: Directive) -> None:
        source, target = _endpoints(self._tiers, directive.direction)
        stream = self._streams[directive.direction]
        done = torch.cuda.Event(blocking=True)  # sleep, do not spin on a core that computes
        with torch.cuda.stream(stream):
            for move in directive.moves:
                _copy(source, target, move)
            done.record(stream)
        done.synchronize()


def _endpoints(tiers: Tiers, direction: Direction) -> tuple[Tensor, Tensor]:
    if direction is Direction.OUT:
        return tiers.device, tiers.host
    return tiers.host, tiers.device


def _copy(source: Tensor, target: Tensor, move: Move) -> None:
    _check(move, len(source), len(target))
    target[move.dst : move.dst + move.count].copy_(
        source[move.src : move.src + move.count], non_blocking=True
    )


def _check(move: Move, source_blocks: int, target_blocks: int) -> None:
    """A slice would be cut short silently, an address would be another's memory."""
    for what, first, blocks in (
        ("source", move.src, source_blocks),
        ("destination", move.dst, target_blocks),
    ):
        if first < 0 or move.count < 1 or first + move.count > blocks:
            raise IndexError(f"{what} blocks {first}+{move.count} are not in a tier of {blocks} blocks")
