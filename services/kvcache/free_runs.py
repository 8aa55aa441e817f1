"""The free blocks of one tier as runs of neighbours, found by either end and by length."""

from collections.abc import Iterator
from typing import NamedTuple, cast

from sortedcontainers import SortedList


class Run(NamedTuple):
    """Blocks start .. start + length - 1. Orders by length, then by position."""

    length: int
    start: int

    @property
    def end(self) -> int:
        """The first block behind it."""
        return self.start + self.length


class FreeRuns:
    """Runs that neither overlap nor touch. A call costs O(log(runs)).

    A run is *slack* if it begins at a block where a job's table would go on, and a *gap* otherwise.
    """

    def __init__(self) -> None:
        self._by_start: dict[int, Run] = {}
        self._by_end: dict[int, Run] = {}
        self._gaps: SortedList = SortedList()
        self._slack: SortedList = SortedList()
        self._wanted: set[int] = set()  # where tables would go on, free or not

    def __len__(self) -> int:
        return len(self._gaps) + len(self._slack)

    def __iter__(self) -> Iterator[Run]:
        """Reads the ordered lists: a block that was released twice shows up twice."""
        yield from self._gaps
        yield from self._slack

    @property
    def largest(self) -> Run:
        """There must be one."""
        return max(cast(Run, runs[-1]) for runs in (self._gaps, self._slack) if runs)

    def gap(self, length: int) -> Run | None:
        """The smallest gap of at least `length` blocks."""
        return _smallest(self._gaps, length)

    def slack(self, length: int) -> Run | None:
        """The smallest slack of at least `length` blocks."""
        return _smallest(self._slack, length)

    def is_slack(self, run: Run) -> bool:
        return run.start in self._wanted

    def starting_at(self, block: int) -> Run | None:
        return self._by_start.get(block)

    def take(self, run: Run, start: int, length: int, *, grows: bool) -> None:
        """Split `length` blocks from `start` on off a run. grows: what is behind them becomes their slack."""
        self._remove(run)
        end = start + length
        if grows:
            self._wanted.add(end)
        if start > run.start:
            self._add(run.start, start)
        if end < run.end:
            self._add(end, run.end)

    def put(self, start: int, end: int) -> None:
        """Blocks start .. end - 1 are free again: merge them with their neighbours."""
        before, behind = self._by_end.get(start), self._by_start.get(end)
        freed = range(start + 1, end + 1)
        if before:
            self._remove(before)
            start = before.start
        if behind:
            self._remove(behind)
            end = behind.end
        self._wanted.difference_update(freed)
        self._add(start, end)

    def unwant(self, block: int) -> None:
        """The table does not go on at `block`, which is not free."""
        self._wanted.discard(block)

    def _add(self, start: int, end: int) -> None:
        run = Run(end - start, start)
        self._by_start[start] = self._by_end[end] = run
        self._list(run).add(run)

    def _remove(self, run: Run) -> None:
        self._list(run).remove(run)
        del self._by_start[run.start]
        del self._by_end[run.end]

    def _list(self, run: Run) -> SortedList:
        return self._slack if run.start in self._wanted else self._gaps


def _smallest(runs: SortedList, length: int) -> Run | None:
    index = runs.bisect_left((length, -1))
    return cast(Run, runs[index]) if index < len(runs) else None
