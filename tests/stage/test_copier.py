import queue
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from services.stage.copier import Copier
from services.stage.tiers import Tiers
from shared.errors import CopyFailed
from shared.ids import BlockId, JobId, TransferId
from shared.messages import Direction, Directive, Move, Transferred

TIMEOUT = 10.0


class Harness:
    """A copier over small tiers; `hold` keeps copies of chosen transfers from starting until `let_go`."""

    def __init__(self, threads: int) -> None:
        dims = (2, 2, 4, 1, 8)
        device = torch.arange(16.0).view(-1, 1, 1, 1, 1, 1).expand(16, *dims).contiguous()
        self.tiers = Tiers(device, torch.zeros((16, *dims)), device[0].nbytes)
        self.done: queue.Queue[Transferred] = queue.Queue()
        self.errors: queue.Queue[tuple[TransferId, Exception]] = queue.Queue()
        self.copier = Copier(self.tiers, threads, self.done.put, lambda *report: self.errors.put(report))
        self._gates: dict[int, threading.Event] = {}
        self.entered: queue.Queue[int] = queue.Queue()
        self.copied: list[int] = []
        copy = self.copier._engine.copy

        def gated(directive: Directive) -> None:
            self.entered.put(directive.transfer_id)
            if directive.transfer_id in self._gates:
                assert self._gates[directive.transfer_id].wait(TIMEOUT)
            copy(directive)
            self.copied.append(directive.transfer_id)

        self.copier._engine.copy = gated

    def hold(self, transfer_id: int) -> None:
        self._gates[transfer_id] = threading.Event()

    def let_go(self, transfer_id: int) -> None:
        self._gates[transfer_id].set()

    def device(self, block: int) -> float:
        return float(self.tiers.device[block].unique())

    def host(self, block: int) -> float:
        return float(self.tiers.host[block].unique())


@pytest.fixture
def harness() -> Iterator[Callable[[int], Harness]]:
    made: list[Harness] = []

    def make(threads: int = 2) -> Harness:
        made.append(Harness(threads))
        return made[-1]

    yield make
    for each in made:
        each.copier.close()


def swap(transfer_id: int, direction: Direction, *moves: tuple[int, int, int]) -> Directive:
    return Directive(
        TransferId(transfer_id),
        JobId(transfer_id),
        direction,
        [Move(BlockId(src), BlockId(dst), count) for src, dst, count in moves],
    )


OUT, IN = Direction.OUT, Direction.IN


def test_moves_groups_and_reports_them(harness: Callable[..., Harness]) -> None:
    h = harness()
    h.copier.start([swap(1, OUT, (3, 8, 2), (9, 0, 1))])
    assert h.copier.wait([TransferId(1)]) >= 0
    assert [h.host(block) for block in (8, 9, 0, 1)] == [3.0, 4.0, 9.0, 0.0]
    report = h.done.get(timeout=TIMEOUT)
    assert (report.transfer_id, report.direction, report.blocks) == (1, OUT, 3)
    assert report.bytes == 3 * 2 * 2 * 4 * 8 * 4
    assert report.seconds > 0


def test_transfers_of_the_same_blocks_keep_their_order(harness: Callable[..., Harness]) -> None:
    h = harness(threads=4)
    h.hold(1)
    # 2 brings back what 1 takes out; 3 takes out the block that 2 fills; 4 has nothing to do with them.
    h.copier.start([swap(1, OUT, (5, 2, 1)), swap(2, IN, (2, 7, 1)), swap(3, OUT, (7, 3, 1))])
    h.copier.start([swap(4, OUT, (11, 4, 1))])
    h.copier.wait([TransferId(4)])
    assert h.copied == [4]
    h.let_go(1)
    h.copier.wait([TransferId(3)])
    assert h.copied == [4, 1, 2, 3]
    assert (h.device(7), h.host(3)) == (5.0, 5.0)


def test_device_blocks_are_not_overwritten_while_they_are_read(harness: Callable[..., Harness]) -> None:
    h = harness()
    h.hold(1)
    h.copier.start([swap(1, OUT, (5, 2, 1)), swap(2, IN, (9, 5, 1))])
    h.let_go(1)
    h.copier.wait([TransferId(2)])
    assert (h.host(2), h.device(5)) == (5.0, 0.0)


def test_wait_blocks_until_the_copy_is_complete(harness: Callable[..., Harness]) -> None:
    h = harness()
    h.hold(1)
    h.copier.start([swap(1, OUT, (5, 2, 1))])
    result: queue.Queue[float] = queue.Queue()
    waiter = threading.Thread(target=lambda: result.put(h.copier.wait([TransferId(1)])))
    waiter.start()
    h.entered.get(timeout=TIMEOUT)
    assert result.empty()
    h.let_go(1)
    assert result.get(timeout=TIMEOUT) > 0
    waiter.join()
    assert h.copier.wait([TransferId(1)]) < 1.0  # done: returns at once


def test_who_waits_for_a_copy_that_has_not_begun_does_it(harness: Callable[..., Harness]) -> None:
    h = harness(threads=1)
    h.hold(1)
    h.copier.start([swap(1, OUT, (5, 2, 1)), swap(2, OUT, (6, 3, 1)), swap(3, IN, (9, 15, 2))])
    h.entered.get(timeout=TIMEOUT)  # the only copy thread is busy
    assert h.copier.wait([TransferId(2)]) > 0
    assert h.host(3) == 6.0
    with pytest.raises(CopyFailed, match="transfer 3 failed"):
        h.copier.wait([TransferId(3)])
    assert h.errors.get(timeout=TIMEOUT)[0] == 3
    h.let_go(1)
    h.copier.start([swap(4, OUT, (7, 4, 1))])
    h.copier.wait([TransferId(1), TransferId(4)])
    assert sorted(h.copied) == [1, 2, 4]  # the copy thread met 2 and 3 and left them alone


def test_who_waits_does_not_overtake_what_writes_its_source(harness: Callable[..., Harness]) -> None:
    h = harness(threads=1)
    h.hold(1)
    h.copier.start([swap(1, OUT, (5, 2, 1)), swap(2, IN, (2, 6, 1))])
    h.entered.get(timeout=TIMEOUT)
    waiter = threading.Thread(target=h.copier.wait, args=([TransferId(2)],))
    waiter.start()
    h.let_go(1)
    waiter.join(TIMEOUT)
    assert h.copied == [1, 2] and h.device(6) == 5.0


def test_failing_copy_is_reported_and_nobody_reads_its_blocks(harness: Callable[..., Harness]) -> None:
    h = harness()
    h.hold(1)
    h.copier.start([swap(1, OUT, (15, 2, 2)), swap(2, IN, (2, 6, 1)), swap(3, OUT, (1, 9, 1))])
    h.let_go(1)
    failed = {h.errors.get(timeout=TIMEOUT)[0] for _ in range(2)}
    assert failed == {1, 2}
    assert h.device(6) == 6.0
    with pytest.raises(CopyFailed, match=r"transfer 2 failed.*source blocks 15\+2"):
        h.copier.wait([TransferId(2)])
    h.copier.wait([TransferId(3)])
    h.copier.start([swap(4, OUT, (1, 9, 1))])  # the thread that met the error lives on
    h.copier.wait([TransferId(4)])


@pytest.mark.parametrize("move", [(0, 16, 1), (-1, 0, 1), (0, 0, 17), (0, 0, 0)])
def test_blocks_outside_of_a_tier_are_errors(
    harness: Callable[..., Harness], move: tuple[int, int, int]
) -> None:
    h = harness()
    h.copier.start([swap(1, OUT, move)])
    assert isinstance(h.errors.get(timeout=TIMEOUT)[1], IndexError)


def test_failing_callback_does_not_end_the_thread(harness: Callable[..., Harness]) -> None:
    h = harness(threads=1)
    h.copier._on_done = lambda _: 1 / 0
    h.copier.start([swap(1, OUT, (5, 2, 1)), swap(2, OUT, (6, 3, 1))])
    h.copier.wait([TransferId(1), TransferId(2)])
    assert h.host(3) == 6.0


def test_repeated_plan_does_not_copy_again(harness: Callable[..., Harness]) -> None:
    h = harness()
    h.copier.start([swap(1, OUT, (5, 2, 1))])
    h.copier.wait([TransferId(1)])
    h.tiers.device[5] = 99.0
    h.copier.start([swap(1, OUT, (5, 2, 1)), swap(2, OUT, (6, 3, 1))])
    h.copier.wait([TransferId(1), TransferId(2)])
    assert h.host(2) == 5.0


def reset_while_it_runs(h: Harness, waiting_for: int) -> threading.Thread:
    """Start a reset while transfer 1 is held; returns once it has forgotten all and waits for that copy."""
    h.entered.get(timeout=TIMEOUT)
    freed: queue.Queue[CopyFailed] = queue.Queue()

    def wait() -> None:
        try:
            h.copier.wait([TransferId(waiting_for)])
        except CopyFailed as error:
            freed.put(error)

    waiter = threading.Thread(target=wait)
    resetter = threading.Thread(target=h.copier.reset)
    waiter.start()
    resetter.start()
    assert "unknown" in str(freed.get(timeout=TIMEOUT))
    waiter.join(TIMEOUT)
    assert resetter.is_alive()
    return resetter


def test_reset_forgets_what_waits_and_outlives_what_runs(harness: Callable[..., Harness]) -> None:
    h = harness()
    h.hold(1)
    h.copier.start([swap(1, OUT, (5, 2, 1)), swap(2, IN, (2, 6, 1))])
    resetter = reset_while_it_runs(h, waiting_for=2)
    h.let_go(1)
    resetter.join(TIMEOUT)
    assert h.copied == [1]
    assert h.done.empty()  # it belongs to the old epoch
    assert h.device(6) == 6.0

    h.copier.start([swap(2, OUT, (7, 4, 1))])  # ids start over
    h.copier.wait([TransferId(2)])
    assert h.host(4) == 7.0


def test_new_epoch_does_not_overtake_a_copy_of_the_old_one(harness: Callable[..., Harness]) -> None:
    h = harness()
    h.hold(1)
    h.copier.start([swap(1, OUT, (15, 2, 2))])  # will fail, which is no concern of the new epoch
    resetter = reset_while_it_runs(h, waiting_for=1)
    h.copier.start([swap(2, OUT, (7, 2, 1)), swap(3, OUT, (8, 4, 1))])
    h.copier.wait([TransferId(3)])
    assert h.copied == [3]
    h.let_go(1)
    h.copier.wait([TransferId(2)])
    assert h.host(2) == 7.0
    resetter.join(TIMEOUT)
