"""Rank 0 of a stage with tensor parallelism: its own runner, and its hold on the other ranks.

One rank that fails or disappears ends the gang: the others cannot compute without it, and its part of the KV
is gone. Whoever is left ends too when its link does, so no process outlives the gang.
"""

import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from torch import Tensor

from services.stage.checkpoint import ProgressFn
from services.stage.collectives import Collectives, ProcessGroup, rendezvous
from services.stage.links import Link, Listener
from services.stage.model_slice import load_config
from services.stage.parallel_layers import check_config
from services.stage.rank_messages import (
    Failed,
    Loading,
    Moved,
    RankSpec,
    Ready,
    Reset,
    ResetDone,
    StartTransfers,
)
from services.stage.runner import StageRunner, StepOutput, choose_device
from shared.config import Config
from shared.errors import RankLost
from shared.ids import TransferId
from shared.messages import DefineGrammar, Directive, StepPlan, Transferred

JOIN_TIMEOUT_S = 300.0
"""For a process to start and import torch, on a machine that does so for all ranks at once."""


class RankProcesses(Protocol):
    """Starts ranks and watches over their processes. host: where they reach this one."""

    @property
    def host(self) -> str: ...

    def start(self, spec: RankSpec) -> None: ...

    def check(self) -> None:
        """Raises RankLost if one of them has ended."""
        ...

    def stop(self) -> None:
        """They end by themselves when their links do; whoever has not must."""
        ...


class Gang:
    """To the stage's service the same as a StageRunner.

    on_transferred: with the rank that has copied
    on_lost: called once, from any thread, when the gang cannot go on
    """

    def __init__(
        self,
        config: Config,
        stage: int,
        folder: Path,
        processes: RankProcesses,
        *,
        on_transferred: Callable[[int, Transferred], None],
        on_copy_error: Callable[[TransferId, Exception], None],
        on_lost: Callable[[RankLost], None],
        progress: ProgressFn = lambda text, fraction: None,
    ) -> None:
        """Returns when every rank is ready.

        Raises ConfigError if the model's heads do not come out even, RankLost if a rank cannot be ready, and
        what StageRunner raises for rank 0.
        """
        check_config(load_config(folder), config.parallel.tensor_parallel)  # before any process starts
        self._timeout_s = config.parallel.rank_timeout_s
        self._processes = processes
        self._on_transferred = on_transferred
        self._on_lost = on_lost
        self._progress = progress
        self._changed = threading.Condition()
        self._ready: dict[int, Ready] = {}
        self._reset: set[int] = set()
        self._lost: RankLost | None = None
        self._closing = False
        self._links: dict[int, Link] = {}
        self._collectives: Collectives | None = None
        try:
            self._collectives = self._assemble(config, stage)
            self._runner = StageRunner(
                config,
                stage,
                folder,
                on_transferred=lambda done: on_transferred(0, done),
                on_copy_error=on_copy_error,
                progress=progress,
                collectives=self._collectives,
            )
            self._wait(lambda: len(self._ready) == len(self._links), timeout_s=None)
        except BaseException as error:
            self._disband()
            if self._lost is not None and isinstance(error, RankLost):
                raise self._lost from error  # the cause, not what followed from it
            raise
        names = {self._runner.hardware, *(ready.hardware for ready in self._ready.values())}
        self.hardware = " + ".join(sorted(names))
        self.max_model_len = self._runner.max_model_len

    def _assemble(self, config: Config, stage: int) -> Collectives:
        """Start the other ranks and connect to them."""
        ranks, host = config.parallel.tensor_parallel, self._processes.host
        token = secrets.token_hex(16)
        store, store_port = rendezvous(host)
        listener = Listener(host, self._timeout_s)
        try:
            for rank in range(1, ranks):
                self._processes.start(RankSpec(config, stage, rank, host, listener.port, store_port, token))
            self._progress(f"waiting for {ranks - 1} more ranks", None)
            self._links = listener.accept(ranks, token, JOIN_TIMEOUT_S, self._processes.check)
        finally:
            listener.close()
        for rank, link in self._links.items():
            name = f"rank-{rank}-link"
            threading.Thread(target=self._read, args=(rank, link), name=name, daemon=True).start()
        return ProcessGroup(store, 0, ranks, choose_device(config.model), host, self._timeout_s)

    # ------------------------------------------------------------ what a runner does

    def start_transfers(self, directives: Sequence[Directive]) -> None:
        """On every rank, at once; from any thread."""
        if directives:
            self._send(StartTransfers(list(directives)))
            self._runner.start_transfers(directives)

    def define(self, definition: DefineGrammar) -> None:
        """On rank 0, which draws; from any thread."""
        self._runner.define(definition)

    def step(self, plan: StepPlan, hidden: Tensor | None = None) -> StepOutput:
        """One iteration on all ranks, as `StageRunner.step`, for a plan whose transfers were started.

        Raises CopyFailed or UnknownGrammar if rank 0 cannot begin it, which harms nobody. After that any
        failure ends the gang, for the others may be anywhere in the step: RankLost if another rank is the
        cause, else what rank 0 raised.
        """
        waited = self._runner.prepare(plan)
        self._send(plan)
        try:
            output = self._runner.compute(plan, hidden)
        except RankLost as error:
            raise self._lose(error) from error
        except Exception as error:
            self._lose(RankLost(f"a step failed: {type(error).__name__}: {error}"))
            raise
        return replace(output, waited=waited)

    def reset(self) -> None:
        """A new epoch: returns when no rank copies anything of before any more.

        Raises RankLost.
        """
        with self._changed:
            self._reset.clear()
        self._send(Reset())
        self._runner.reset()
        self._wait(lambda: len(self._reset) == len(self._links), self._timeout_s)

    def close(self) -> None:
        self._disband()
        self._runner.close()

    # ------------------------------------------------------------ the other ranks

    def _send(self, message: StartTransfers | StepPlan | Reset) -> None:
        """To all of them. Raises RankLost."""
        if self._lost is not None:
            raise self._lost
        for rank, link in self._links.items():
            try:
                link.send(message)
            except RankLost as error:
                raise self._lose(RankLost(f"rank {rank}: {error}")) from error

    def _read(self, rank: int, link: Link) -> None:
        """In a thread per rank, as long as there is a link."""
        while True:
            try:
                message = link.receive()
            except RankLost as error:
                self._lose(RankLost(f"rank {rank} is gone: {error}"))
                return
            match message:
                case Moved(done):
                    self._on_transferred(rank, done)
                case Loading(text, fraction):
                    self._progress(f"rank {rank}: {text}", fraction)
                case Ready() as ready:
                    with self._changed:
                        self._ready[rank] = ready
                        self._changed.notify_all()
                case ResetDone():
                    with self._changed:
                        self._reset.add(rank)
                        self._changed.notify_all()
                case Failed(reason):
                    self._lose(RankLost(f"rank {rank}: {reason}"))
                    return
                case other:
                    self._lose(RankLost(f"rank {rank} sent {type(other).__name__}"))
                    return

    def _wait(self, condition: Callable[[], bool], timeout_s: float | None) -> None:
        with self._changed:
            came = self._changed.wait_for(lambda: self._lost is not None or condition(), timeout_s)
            lost = self._lost
        if lost is None and not came:
            lost = self._lose(RankLost(f"not every rank answered within {timeout_s:.0f} s"))
        if lost is not None:
            raise lost

    def _lose(self, error: RankLost) -> RankLost:
        """The gang is over; returns the first cause."""
        with self._changed:
            if self._closing or self._lost is not None:
                return self._lost or error
            self._lost = error
            self._changed.notify_all()
        if self._collectives is not None:
            self._collectives.abort()  # the compute thread may wait for a rank that will never come
        self._disband()
        self._on_lost(error)
        return error

    def _disband(self) -> None:
        """The other processes end with their links."""
        with self._changed:
            self._closing = True
        for link in self._links.values():
            link.close()
        self._processes.stop()
