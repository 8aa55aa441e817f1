"""How a directive's bytes move: by the processor, or by CUDA's copy streams."""

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
    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers

    def mark(self) -> None:
        return None  # kernels have finished when their call returns

    def copy(self, directive: Directive, after: torch.cuda.Event | None) -> None:
        source, target = _endpoints(self._tiers, directive.direction)
        for move in directive.moves:
            _copy(source, target, move)


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
    for what, first, tier in (("source", move.src, source), ("destination", move.dst, target)):
        # A slice would be cut short silently.
        if first < 0 or move.count < 1 or first + move.count > len(tier):
            raise IndexError(f"{what} blocks {first}+{move.count} are not in a tier of {len(tier)} blocks")
    target[move.dst : move.dst + move.count].copy_(
        source[move.src : move.src + move.count], non_blocking=True
    )
