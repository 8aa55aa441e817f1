"""Carries out directives: copies groups of blocks between the tiers, beside the computation.

    compute thread   start(D1, D2) ------- compute ------- wait(D2) -- compute ...
    copy threads       D1: copy | on_done(D1)
                                  D2 (same blocks, so after D1): copy | on_done(D2)

A copy that is waited for and has not begun is done by the compute thread itself: it would only sleep while
other copies come first. That cuts the wait for a swap-in behind swaps out to a quarter
(`python -m loadgen.copy_wait`).

On CUDA a copy runs on a stream of its own, beside whatever the compute stream is busy with. It counts as done
when an event that was recorded *after* it has passed.
"""

import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from services.stage.copy_engines import engine_for
from services.stage.tiers import Tiers
from shared.errors import CopyFailed
from shared.ids import TransferId
from shared.messages import Direction, Directive, Transferred

log = logging.getLogger("skipjoin.stage")

_REMEMBERED = 65536
"""Finished transfers that `wait` still recognises; a step waits for recent ones only."""


@dataclass(slots=True, eq=False)
class _Transfer:
    """blocked_by: unfinished transfers before it"""

    directive: Directive
    device_blocks: frozenset[int]
    host_blocks: frozenset[int]
    blocked_by: int = 0
    followers: list["_Transfer"] = field(default_factory=list)
    failure: Exception | None = None

    @classmethod
    def of(cls, directive: Directive) -> "_Transfer":
        moves = directive.moves
        sources = frozenset[int]().union(*(range(move.src, move.src + move.count) for move in moves))
        targets = frozenset[int]().union(*(range(move.dst, move.dst + move.count) for move in moves))
        if directive.direction is Direction.OUT:
            return cls(directive, sources, targets)
        return cls(directive, targets, sources)

    def touches(self, other: "_Transfer") -> bool:
        apart = self.device_blocks.isdisjoint(other.device_blocks)
        return not (apart and self.host_blocks.isdisjoint(other.host_blocks))


class Copier:
    """Transfers that touch the same blocks run in the order they were started in; others side by side.

    on_done, on_error: called from the thread that copied, one of them once per transfer; they must not block
    """

    def __init__(
        self,
        tiers: Tiers,
        threads: int,
        on_done: Callable[[Transferred], None],
        on_error: Callable[[TransferId, Exception], None],
    ) -> None:
        self._block_bytes = tiers.block_bytes
        self._engine = engine_for(tiers)
        self._on_done = on_done
        self._on_error = on_error
        self._changed = threading.Condition()
        self._unfinished: dict[TransferId, _Transfer] = {}
        self._finished: OrderedDict[TransferId, Exception | None] = OrderedDict()
        self._running: set[_Transfer] = set()
        self._runnable: queue.SimpleQueue[_Transfer | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"kv-copy-{i}", daemon=True) for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def start(self, directives: Sequence[Directive]) -> None:
        """Begin these transfers and return at once; from any thread.

        A transfer id that was started before is left alone: a repeated plan must not copy twice.
        """
        if not directives:
            return
        with self._changed:
            for directive in directives:
                if directive.transfer_id in self._unfinished or directive.transfer_id in self._finished:
                    continue
                transfer = _Transfer.of(directive)
                # Running ones may be of an epoch that was reset, and no longer among the unfinished.
                for earlier in {*self._unfinished.values(), *self._running}:
                    if transfer.touches(earlier):
                        earlier.followers.append(transfer)
                        transfer.blocked_by += 1
                self._unfinished[directive.transfer_id] = transfer
                if not transfer.blocked_by:
                    self._runnable.put(transfer)

    def wait(self, transfer_ids: Iterable[TransferId]) -> float:
        """Return when these transfers are complete; returns the seconds that took, with own copies.

        Raises CopyFailed if one failed, was forgotten by `reset`, or was never started here.
        """
        began = time.perf_counter()
        transfer_ids = list(transfer_ids)
        for transfer_id in reversed(transfer_ids):  # the copy threads take them from the front
            self._copy_unless_begun(transfer_id)
        for transfer_id in transfer_ids:
            with self._changed:
                self._changed.wait_for(lambda awaited=transfer_id: awaited not in self._unfinished)
                if transfer_id not in self._finished:
                    raise CopyFailed(
                        f"transfer {transfer_id} is unknown: its plan was lost, or is of another epoch"
                    )
                failure = self._finished[transfer_id]
            if failure is not None:
                raise CopyFailed(f"transfer {transfer_id} failed: {failure}") from failure
        return time.perf_counter() - began

    def reset(self) -> None:
        """A new epoch: forget everything. Once it returns, nothing of before is written or reported."""
        with self._changed:
            self._unfinished.clear()
            self._finished.clear()
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._running)

    def close(self) -> None:
        """Let running copies finish and end the threads."""
        self.reset()
        for _ in self._threads:
            self._runnable.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (transfer := self._runnable.get()) is not None:
            if self._claim(transfer):
                self._copy(transfer)

    def _copy_unless_begun(self, transfer_id: TransferId) -> None:
        """In the thread that waits for it, which would only sleep while others are copied first."""
        transfer = self._unfinished.get(transfer_id)
        if transfer is not None and not transfer.blocked_by and self._claim(transfer):
            self._copy(transfer)

    def _claim(self, transfer: _Transfer) -> bool:
        """False if another thread copies it or has done so, or a `reset` has forgotten it."""
        with self._changed:
            if not self._is_current(transfer) or transfer in self._running:
                return False
            self._running.add(transfer)
            return True

    def _copy(self, transfer: _Transfer) -> None:
        began = time.perf_counter()
        if transfer.failure is None:
            try:
                self._engine.copy(transfer.directive)
            except Exception as error:
                transfer.failure = error
        self._finish(transfer, time.perf_counter() - began)

    def _is_current(self, transfer: _Transfer) -> bool:
        """Whether no `reset` has forgotten it; ids start over in a new epoch, so identity decides."""
        return self._unfinished.get(transfer.directive.transfer_id) is transfer

    def _finish(self, transfer: _Transfer, seconds: float) -> None:
        with self._changed:
            current = self._is_current(transfer)
            if current:
                self._settle(transfer)
        if current:
            self._report(transfer, seconds)
        with self._changed:
            self._running.remove(transfer)  # only now: `reset` also waits for the report
            for follower in transfer.followers:
                if current:  # what it would read may never have been written
                    follower.failure = follower.failure or transfer.failure
                follower.blocked_by -= 1
                if not follower.blocked_by:
                    self._runnable.put(follower)
            self._changed.notify_all()

    def _settle(self, transfer: _Transfer) -> None:
        transfer_id = transfer.directive.transfer_id
        del self._unfinished[transfer_id]
        self._finished[transfer_id] = transfer.failure
        if len(self._finished) > _REMEMBERED:
            self._finished.popitem(last=False)
        self._changed.notify_all()

    def _report(self, transfer: _Transfer, seconds: float) -> None:
        directive = transfer.directive
        try:
            if transfer.failure is not None:
                self._on_error(directive.transfer_id, transfer.failure)
            else:
                size = directive.blocks * self._block_bytes
                done = Transferred(
                    directive.transfer_id, directive.direction, directive.blocks, size, seconds
                )
                self._on_done(done)
        except Exception:
            # The thread must live on; the manager sees a transfer that never ends.
            log.exception("the receiver of transfer %d's end failed", directive.transfer_id)
