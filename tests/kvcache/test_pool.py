"""The block pool beside a reference model: the set of free ids."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.kvcache.pool import BlockPool
from shared.errors import KVCapacityError
from shared.ids import BlockId

TOTAL = 48
COUNTS = st.integers(0, 12)


def create_pool(total: int, *free: range, growing: bool = True) -> BlockPool:
    """A pool in which just these runs are free."""
    pool = BlockPool(total, growing=growing)
    held = set(pool.allocate(total))
    for run in free:
        pool.release(BlockId(block) for block in run)
        held -= {BlockId(block) for block in run}
    assert pool.free == total - len(held)
    return pool


def groups(blocks: list[BlockId]) -> list[int]:
    """Lengths of the contiguous runs of a table."""
    lengths = [1] if blocks else []
    for block, following in pairwise(blocks):
        if following == block + 1:
            lengths[-1] += 1
        else:
            lengths.append(1)
    return lengths


def free_runs(free: set[BlockId]) -> list[int]:
    return groups(sorted(free))


class Histories(RuleBasedStateMachine):
    growing = True

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(TOTAL, growing=self.growing)
        self.free = {BlockId(block) for block in range(TOTAL)}
        self.tables: list[list[BlockId]] = []

    @rule(count=COUNTS)
    def begin(self, count: int) -> None:
        """A job's first blocks."""
        runs = free_runs(self.free)
        taken = self.allocate(count, None)
        if taken:
            self.tables.append(taken)
            lengths = sorted(runs, reverse=True)
            fewest = next(n for n in range(1, len(lengths) + 1) if sum(lengths[:n]) >= count)
            assert len(groups(taken)) == fewest

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), count=COUNTS)
    def grow(self, data: st.DataObject, count: int) -> None:
        table = data.draw(st.sampled_from(self.tables))
        free_behind = 0
        while table[-1] + 1 + free_behind in self.free:
            free_behind += 1
        taken = self.allocate(count, table[-1])
        if taken:
            extended = min(count, free_behind)
            assert taken[:extended] == list(range(table[-1] + 1, table[-1] + 1 + extended))
            table += taken

    def allocate(self, count: int, after: BlockId | None) -> list[BlockId]:
        if count > len(self.free):
            before = sorted(self.pool.free_blocks()), self.pool.group_blocks
            with pytest.raises(KVCapacityError):
                self.pool.allocate(count, after)
            assert (sorted(self.pool.free_blocks()), self.pool.group_blocks) == before
            return []
        taken = self.pool.allocate(count, after)
        assert len(taken) == len(set(taken)) == count and self.free.issuperset(taken)
        self.free.difference_update(taken)
        return taken

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.release(table)
        self.free.update(table)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        """A table may also be given back in parts."""
        index = data.draw(st.integers(0, len(self.tables) - 1))
        table = self.tables[index]
        start = data.draw(st.integers(0, len(table) - 1))
        end = data.draw(st.integers(start + 1, len(table)))
        self.pool.release(table[start:end])
        self.free.update(table[start:end])
        self.tables[index : index + 1] = [part for part in (table[:start], table[end:]) if part]

    @invariant()
    def agrees_with_the_model(self) -> None:
        pool, runs = self.pool, free_runs(self.free)
        assert sorted(pool.free_blocks()) == sorted(self.free), "no block is lost or doubled"
        assert pool.free == len(self.free) and pool.free_runs == len(runs)
        assert pool.largest_free_run == max(runs, default=0)
        assert pool.fragmentation == (1 - max(runs) / sum(runs) if runs else 0)
        held = [length for table in self.tables for length in groups(table)]
        assert pool.group_blocks == (sum(held) / len(held) if held else 0)

    def teardown(self) -> None:
        for table in self.tables:
            self.pool.release(reversed(table))
        assert self.pool.free_runs == 1 and self.pool.largest_free_run == self.pool.free == TOTAL
        assert self.pool.group_blocks == 0


class RestingHistories(Histories):
    growing = False


TestHistories = Histories.TestCase
TestRestingHistories = RestingHistories.TestCase
TestHistories.settings = TestRestingHistories.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None
)


def test_a_group_goes_into_the_smallest_gap_with_average_room() -> None:
    runs = (range(20), range(30, 34), range(40, 49))
    assert create_pool(60, *runs, growing=False).allocate(4) == [30, 31, 32, 33]
    # 11 free blocks a run: 15 are looked for.
    assert create_pool(60, *runs).allocate(4) == [0, 1, 2, 3]
    # None has room for 18 + 11: the smallest that holds the group.
    assert create_pool(60, *runs).allocate(18) == list(range(18))


def test_the_slack_of_a_job_is_taken_last_and_halved() -> None:
    pool = BlockPool(64)
    first = pool.allocate(4)
    second = pool.allocate(4)
    assert (first[0], second[0]) == (0, 32), "the tier is one slack: the second group goes into its middle"
    pool.release(first)
    assert pool.allocate(20)[0] == 0, "what a job that ended leaves behind is no slack any more"
    assert pool.allocate(4, after=second[-1])[0] == 36


def test_jobs_that_grow_side_by_side_keep_one_group_each_while_there_is_room() -> None:
    pool = BlockPool(1024)
    tables = [pool.allocate(4) for _ in range(16)]
    for _ in range(16):
        for table in tables:
            table += pool.allocate(1, after=table[-1])
    assert [groups(table) for table in tables] == [[20]] * 16


def test_a_group_that_fits_nowhere_is_split_over_the_largest_runs() -> None:
    pool = create_pool(40, range(3), range(10, 15), range(20, 24), range(30, 31))
    assert pool.allocate(8) == [10, 11, 12, 13, 14, 0, 1, 2], "what is left is placed like a group of its own"


@given(order=st.permutations(range(12)))
def test_released_in_any_order_the_blocks_are_one_run_again(order: list[int]) -> None:
    pool = BlockPool(12)
    pool.allocate(12)
    for block in order:
        pool.release([BlockId(block)])
    assert (pool.free_runs, pool.largest_free_run, pool.fragmentation) == (1, 12, 0)


def test_an_empty_tier_and_an_empty_request() -> None:
    pool = BlockPool(0)
    assert pool.allocate(0) == [] and (pool.free_runs, pool.fragmentation, pool.group_blocks) == (0, 0, 0)
    with pytest.raises(KVCapacityError):
        pool.allocate(1)
