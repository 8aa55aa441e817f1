"""The blocks of one tier, given out and taken back as block groups (FastSwitch, arXiv:2411.18424).

A block group is a run of neighbours that one job holds in the order of its table; it moves in one copy.
"""

from collections.abc import Iterable, Iterator
from typing import cast

from services.kvcache.free_runs import FreeRuns, Run
from shared.errors import KVCapacityError
from shared.ids import BlockId
from shared.messages import Move


class BlockPool:
    """Blocks 0..total-1.

    Where a group goes: jobs grow by a block at a time and side by side, so each needs room behind its last
    block, which is then its slack: not reserved, but others take it last.

    1. Behind the job's last block, as far as that is free.
    2. In the smallest gap (a free run that is nobody's slack) that holds the group and the room of an average
       free run; if there is none, in the smallest gap that holds the group.
    3. In the smallest slack that holds the group and the same room; if there is none, in the largest free
       run. It goes into the middle, so that both jobs can grow on.
    4. If no run holds it, it is split: the largest runs first, then what is left by 2 and 3.

    An empty tier thus is halved again and again, groups begin with as much room as there is, and the room
    shrinks by itself as the tier fills. `python -m loadgen.block_groups` measures the rule.

    growing: False leaves no room and gives nobody slack: best fit, for a tier whose groups stay as they are
    """

    def __init__(self, total: int, *, growing: bool = True) -> None:
        self.total = total
        self.free = total
        self._growing = growing
        self._runs = FreeRuns()
        self._heads: set[int] = set()  # the first block of each group that is held
        if total:
            self._runs.put(0, total)

    # ------------------------------------------------------------ blocks

    def allocate(self, count: int, after: BlockId | None = None) -> list[BlockId]:
        """Take `count` blocks in as few groups as the rule above allows.

        after: the last block that the job holds

        O(groups · log(free runs)), and the list itself.
        Raises KVCapacityError if fewer are free; none is taken then.
        """
        if count > self.free:
            raise KVCapacityError(f"{count} blocks wanted, {self.free} of {self.total} are free")
        taken: list[BlockId] = []
        if count and after is not None:
            run = self._runs.starting_at(after + 1)
            if run:
                taken += self._take(run, run.start, count)
            self._runs.unwant(after + 1)
        while len(taken) < count:
            run, start = self._place(count - len(taken))
            self._heads.add(start)
            taken += self._take(run, start, count - len(taken))
        return taken

    def _place(self, count: int) -> tuple[Run, int]:
        """A free run for a new group, and the block of it to begin at."""
        runs = self._runs
        room = self.free // len(runs) if self._growing else 0
        run = runs.gap(count + room) or runs.gap(count) or runs.slack(count + room) or runs.largest
        if run.length > count and runs.is_slack(run):
            return run, run.start + (run.length - count) // 2
        return run, run.start

    def _take(self, run: Run, start: int, count: int) -> list[BlockId]:
        """Up to `count` blocks of a run from `start` on; behind the last one that is wanted, room to grow."""
        length = min(count, run.end - start)
        self.free -= length
        self._runs.take(run, start, length, grows=self._growing and length == count)
        return _blocks(start, length)

    def release(self, blocks: Iterable[BlockId]) -> None:
        """Give back blocks of any jobs; neighbours merge. O(groups · log(free runs)), and the list itself."""
        for start, end in _neighbours(blocks):
            self.free += end - start
            self._heads.difference_update(range(start, end))
            if end < self.total and self._runs.starting_at(end) is None:
                self._heads.add(end)  # if it was inside a group, that begins here now
            self._runs.put(start, end)

    # ------------------------------------------------------------ how it is cut up

    @property
    def free_runs(self) -> int:
        """Contiguous free runs."""
        return len(self._runs)

    @property
    def largest_free_run(self) -> int:
        """Its blocks; 0 when nothing is free."""
        return self._runs.largest.length if self.free else 0

    @property
    def fragmentation(self) -> float:
        """Share of the free blocks outside the largest free run; 0 when nothing is free."""
        return 1 - self.largest_free_run / self.free if self.free else 0.0

    @property
    def group_blocks(self) -> float:
        """Mean blocks of the groups that jobs hold: what one copy moves; 0 when nothing is held."""
        return (self.total - self.free) / len(self._heads) if self._heads else 0.0

    def free_blocks(self) -> list[BlockId]:
        """The ids of the free blocks, for the integrity check."""
        return [block for run in self._runs for block in _blocks(run.start, run.length)]


def _blocks(start: int, length: int) -> list[BlockId]:
    return cast(list[BlockId], list(range(start, start + length)))


def _neighbours(blocks: Iterable[BlockId]) -> Iterator[tuple[int, int]]:
    """Cut a list where the next block is not the next id: first block, and the one behind the last."""
    start = end = -1
    for block in blocks:
        if block != end:
            if start >= 0:
                yield start, end
            start = block
        end = block + 1
    if start >= 0:
        yield start, end


def coalesce(sources: list[BlockId], destinations: list[BlockId]) -> list[Move]:
    """Pairwise moves, neighbours merged into one copy each."""
    moves: list[Move] = []
    if not sources:
        return moves
    first_src, first_dst, count = sources[0], destinations[0], 0
    for src, dst in zip(sources, destinations, strict=True):
        if src != first_src + count or dst != first_dst + count:
            moves.append(Move(first_src, first_dst, count))
            first_src, first_dst, count = src, dst, 0
        count += 1
    moves.append(Move(first_src, first_dst, count))
    return moves
