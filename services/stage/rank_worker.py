"""A rank other than the first: obeys rank 0, and ends with it.

link ──> main thread ──directives──> copy threads ──Moved──> link
               └──plans, resets──> compute thread ──collectives──> the other ranks
"""

import logging
import os
import queue
import threading

from services.stage import checkpoint
from services.stage.collectives import ProcessGroup, join_rendezvous
from services.stage.links import Link, join
from services.stage.rank_messages import (
    Failed,
    Loading,
    Moved,
    RankSpec,
    Ready,
    Reset,
    ResetDone,
    StartTransfers,
    decode_spec,
)
from services.stage.runner import StageRunner, choose_device
from shared.errors import RankLost
from shared.ids import TransferId
from shared.messages import StepPlan, Transferred

log = logging.getLogger("skipjoin.stage")


def run(spec: bytes) -> None:
    """Be a rank in this process until rank 0 is gone or this rank has failed, and end the process.

    Never returns. The end is abrupt because the compute thread may wait for a rank that will never come.
    """
    try:
        _Rank(decode_spec(spec)).obey()
    except BaseException:
        log.exception("the rank has failed")
        os._exit(1)
    os._exit(0)


class _Rank:
    def __init__(self, spec: RankSpec) -> None:
        self._spec = spec
        self._link: Link = join(spec, spec.config.parallel.rank_timeout_s)
        self._work: queue.SimpleQueue[StepPlan | Reset] = queue.SimpleQueue()
        self._runner: StageRunner | None = None

    def obey(self) -> None:
        """Returns when the link has ended."""
        # As on rank 0, everything that touches the model runs in one thread, its allocation included.
        threading.Thread(target=self._compute, name="compute", daemon=True).start()
        while True:
            try:
                message = self._link.receive()
            except RankLost as error:
                log.info("rank %d ends: %s", self._spec.rank, error)
                return
            match message:
                case StartTransfers(directives):
                    assert self._runner is not None  # plans come after Ready
                    self._runner.start_transfers(directives)
                case StepPlan() | Reset() as work:
                    self._work.put(work)
                case other:
                    raise RankLost(f"rank 0 sent {type(other).__name__}")

    def _compute(self) -> None:
        try:
            runner = self._runner = self._load()
            self._link.send(Ready(runner.hardware))
            while True:
                match self._work.get():
                    case StepPlan() as plan:
                        runner.prepare(plan)
                        runner.compute(plan)
                    case Reset():
                        runner.reset()
                        self._link.send(ResetDone())
        except BaseException as error:
            log.exception("rank %d has failed", self._spec.rank)
            self._fail(f"{type(error).__name__}: {error}")

    def _load(self) -> StageRunner:
        spec, config = self._spec, self._spec.config
        store = join_rendezvous(spec.host, spec.store_port)
        ranks, device = config.parallel.tensor_parallel, choose_device(config.model)
        group = ProcessGroup(
            store, spec.rank, ranks, device, self._link.local_address, config.parallel.rank_timeout_s
        )
        return StageRunner(
            config,
            spec.stage,
            checkpoint.resolve(config.model, self._report),
            on_transferred=self._moved,
            on_copy_error=self._copy_failed,
            progress=self._report,
            collectives=group,
        )

    def _report(self, text: str, fraction: float | None) -> None:
        self._link.send(Loading(text, fraction))

    def _moved(self, done: Transferred) -> None:
        """In a copy thread."""
        try:
            self._link.send(Moved(done))
        except RankLost as error:
            self._fail(str(error))

    def _copy_failed(self, transfer_id: TransferId, error: Exception) -> None:
        """In a copy thread. The manager would wait for ever, so the stage must be replaced."""
        self._fail(f"transfer {transfer_id} failed: {error!r}")

    def _fail(self, reason: str) -> None:
        """From any thread: say why, and end."""
        try:
            self._link.send(Failed(reason))
        except RankLost:
            pass  # rank 0 is gone, too
        os._exit(1)
