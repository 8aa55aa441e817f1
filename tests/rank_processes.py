"""Ranks as plain processes of this machine, where the application has Ray actors."""

import multiprocessing
from multiprocessing.process import BaseProcess

from services.stage import rank_worker
from services.stage.rank_messages import RankSpec, encode_spec
from shared.errors import RankLost

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["services.stage.rank_worker"])  # torch is imported once for all ranks


END_S = 10.0


class LocalRanks:
    host = "127.0.0.1"

    def __init__(self) -> None:
        self.processes: list[BaseProcess] = []

    def start(self, spec: RankSpec) -> None:
        process = _context.Process(target=rank_worker.run, args=(encode_spec(spec),), daemon=True)
        process.start()
        self.processes.append(process)

    def check(self) -> None:
        for process in self.processes:
            if not process.is_alive():
                raise RankLost(f"the process of a rank has ended with status {process.exitcode}")

    def stop(self) -> None:
        pass  # they end by themselves, as `assert_ended` sees

    def assert_ended(self) -> None:
        for process in self.processes:
            process.join(END_S)
            if process.is_alive():
                process.kill()
                raise AssertionError(f"rank process {process.pid} has outlived its gang")
