"""How a directive's bytes move: by the processor, or by CUDA's copy streams."""

import ctypes
from typing import Protocol

import torch
from torch import Tensor

from services.stage.tiers import Tiers
from shared.messages import Direction, Directive, Move


class CopyEngine(Protocol):
    def mark(self) -> torch.cuda.Event | None:
        """Called by the compute thread: what it has issued so far comes before the copies that follow."""
        ...

    def copy(self, directive: Directive, after: torch.cuda.Event | None) -> None:
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

    def mark(self) -> None:
        return None  # kernels have finished when their call returns

    def copy(self, directive: Directive, after: torch.cuda.Event | None) -> None:
        source, source_blocks, target, target_blocks = self._ends[directive.direction]
        size = self._block_bytes
        for move in directive.moves:
            _check(move, source_blocks, target_blocks)
            ctypes.memmove(target + move.dst * size, source + move.src * size, move.count * size)


class _CudaEngine:
    """One stream per direction: both copy engines of the card can be busy at once."""

    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers
        self._device = tiers.device.device
        self._streams = {direction: torch.cuda.Stream(self._device) for direction in Direction}

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def copy(self, directive: Directive, after: torch.cuda.Event | None) -> None:
        source, target = _endpoints(self._tiers, directive.direction)
        stream = self._streams[directive.direction]
        done = torch.cuda.Event(blocking=True)  # sleep, do not spin on a core that computes
        with torch.cuda.stream(stream):
            if after is not None:
                stream.wait_event(after)
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
