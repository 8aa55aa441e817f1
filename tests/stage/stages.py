"""The stages of one pipeline as they run in the application, without the bus between them.

Rank 0 of every stage is in this process, the other ranks are processes of their own.
"""

import threading
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from services.stage.gang import Gang
from services.stage.runner import StageRunner
from shared.config import Config
from shared.ids import TransferId
from shared.messages import Transferred
from tests.rank_processes import LocalRanks

TIMEOUT_S = 30.0


class Stages:
    """runners: one per stage; failures: of copies and ranks"""

    def __init__(self, config: Config, folder: Path) -> None:
        self.copies = config.parallel.pipeline_stages * config.parallel.tensor_parallel
        self.failures: list[Exception] = []
        self.processes: list[LocalRanks] = []
        self._acknowledged: list[tuple[int, int, Transferred]] = []
        self._counts: dict[TransferId, int] = {}
        self._changed = threading.Condition()
        self.runners: list[StageRunner | Gang] = []
        try:
            for stage in range(config.parallel.pipeline_stages):
                self.runners.append(self._start(config, stage, folder))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _start(self, config: Config, stage: int, folder: Path) -> StageRunner | Gang:
        if config.parallel.tensor_parallel == 1:
            return StageRunner(
                config,
                stage,
                folder,
                on_transferred=partial(self._note, stage, 0),
                on_copy_error=lambda _, error: self.failures.append(error),
            )
        self.processes.append(LocalRanks())
        return Gang(
            config,
            stage,
            folder,
            self.processes[-1],
            on_transferred=partial(self._note, stage),
            on_copy_error=lambda _, error: self.failures.append(error),
            on_lost=self.failures.append,
        )

    def close(self) -> None:
        """All processes must end by themselves."""
        for runner in self.runners:
            runner.close()
        for ranks in self.processes:
            ranks.assert_ended()

    def take_acknowledged(self) -> list[tuple[int, int, Transferred]]:
        """Stage, rank and copy of what was acknowledged since the last call."""
        with self._changed:
            taken, self._acknowledged = self._acknowledged, []
            return taken

    def wait(self, transfer_id: TransferId) -> None:
        """Until every stage and rank has copied."""
        with self._changed:
            done = self._changed.wait_for(lambda: self._counts.get(transfer_id) == self.copies, TIMEOUT_S)
        assert done, f"transfer {transfer_id}: {self._counts.get(transfer_id, 0)} of {self.copies} copies"

    def _note(self, stage: int, rank: int, done: Transferred) -> None:
        with self._changed:
            self._acknowledged.append((stage, rank, done))
            self._counts[done.transfer_id] = self._counts.get(done.transfer_id, 0) + 1
            self._changed.notify_all()
