"""The free blocks of one tier."""

import heapq
from collections.abc import Iterable

from shared.errors import KVCapacityError
from shared.ids import BlockId
from shared.messages import Move


class BlockPool:
    """Blocks 0..total-1. The lowest free ids go first, so that a job's blocks tend to be neighbours."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = [BlockId(block) for block in range(total)]

    @property
    def free(self) -> int:
        return len(self._free)

    def allocate(self, count: int) -> list[BlockId]:
        """Take `count` blocks.

        Raises KVCapacityError if fewer are free; none is taken then.
        """
        if count > self.free:
            raise KVCapacityError(f"{count} blocks wanted, {self.free} of {self.total} are free")
        return [heapq.heappop(self._free) for _ in range(count)]

    def release(self, blocks: Iterable[BlockId]) -> None:
        for block in blocks:
            heapq.heappush(self._free, block)

    def free_blocks(self) -> list[BlockId]:
        """The ids of the free blocks, for the integrity check."""
        return list(self._free)


def coalesce(sources: list[BlockId], destinations: list[BlockId]) -> list[Move]:
    """Pairwise moves, neighbours merged into one copy each."""
    moves: list[Move] = []
    for src, dst in zip(sources, destinations, strict=True):
        last = moves[-1] if moves else None
        if last and src == last.src + last.count and dst == last.dst + last.count:
            moves[-1] = Move(last.src, last.dst, last.count + 1)
        else:
            moves.append(Move(src, dst, 1))
    return moves
