"""The ranks of one stage as processes: they obey at once, and they end together."""

import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from services.stage.gang import Gang
from services.stage.links import Link, Listener
from services.stage.rank_messages import Joined, RankSpec
from services.stage.runner import StageRunner
from shared.config import Config
from shared.errors import RankLost
from shared.ids import BlockId, JobId, StepId, TransferId
from shared.messages import Direction, Directive, Move, StepPlan, Transferred
from tests.rank_processes import LocalRanks

from .models import make_prompt
from .pipeline import Pipeline, make_config

Tiny = Callable[[str], tuple[Path, torch.nn.Module]]
TIMEOUT_S = 20.0


class GangOfTwo:
    """One stage. acknowledged: (rank, copy); losses: what the service is told"""

    def __init__(self, config: Config, folder: Path, processes: LocalRanks | None = None) -> None:
        self.acknowledged: queue.Queue[tuple[int, Transferred]] = queue.Queue()
        self.losses: queue.Queue[RankLost] = queue.Queue()
        self.processes = processes or LocalRanks()
        self.gang = Gang(
            config,
            0,
            folder,
            self.processes,
            on_transferred=lambda rank, done: self.acknowledged.put((rank, done)),
            on_copy_error=lambda _, error: pytest.fail(str(error)),
            on_lost=self.losses.put,
        )

    def signal(self, number: signal.Signals) -> None:
        """To the other rank."""
        pid = self.processes.processes[0].pid
        assert pid is not None
        os.kill(pid, number)

    def acknowledgements(self, count: int) -> list[tuple[int, TransferId]]:
        """The next ones, sorted."""
        items = [self.acknowledged.get(timeout=TIMEOUT_S) for _ in range(count)]
        return sorted((rank, done.transfer_id) for rank, done in items)


@contextmanager
def gang_of_two(config: Config, folder: Path) -> Iterator[GangOfTwo]:
    pair = GangOfTwo(config, folder)
    try:
        yield pair
    finally:
        pair.gang.close()
        pair.processes.assert_ended()


def plan(folder: Path) -> StepPlan:
    """A prompt of six tokens, made as a scheduler would."""
    with Pipeline(make_config(folder), folder) as pipeline:
        job = pipeline.new_job(make_prompt(6, seed=1))
        return replace(pipeline.plan([(job, 6)], [], []), step_id=StepId(1))


def swap_out(transfer_id: int, block: int) -> Directive:
    move = Move(BlockId(block), BlockId(block), 2)
    return Directive(TransferId(transfer_id), JobId(1), Direction.OUT, [move])


def config_of_two(folder: Path, timeout_s: float = TIMEOUT_S) -> Config:
    config = make_config(folder, ranks=2)
    return replace(config, parallel=replace(config.parallel, rank_timeout_s=timeout_s))


def test_copies_begin_on_every_rank_while_a_step_computes(tiny: Tiny) -> None:
    folder, _ = tiny("llama")
    step = plan(folder)
    with gang_of_two(config_of_two(folder), folder) as pair:
        pair.gang._send(step)  # the other rank now computes, and waits for this one in the first sum
        pair.gang.start_transfers([swap_out(1, 4), swap_out(2, 8)])
        assert pair.acknowledgements(4) == [(0, 1), (0, 2), (1, 1), (1, 2)]
        assert len(pair.gang._runner.compute(step).tokens) == 1


def test_a_reset_forgets_transfers_on_every_rank(tiny: Tiny) -> None:
    """Ids start over in a new epoch: a transfer of an id that was used before must be copied again."""
    folder, _ = tiny("llama")
    with gang_of_two(config_of_two(folder), folder) as pair:
        for _ in range(3):
            pair.gang.start_transfers([swap_out(1, 4)])
            assert pair.acknowledgements(2) == [(0, 1), (1, 1)]
            pair.gang.start_transfers([swap_out(1, 4)])  # repeated, within the epoch
            pair.gang.reset()
            assert pair.acknowledged.empty()


def test_a_killed_rank_ends_the_gang(tiny: Tiny) -> None:
    folder, _ = tiny("llama")
    with gang_of_two(config_of_two(folder), folder) as pair:
        pair.signal(signal.SIGKILL)
        assert "rank 1 is gone" in str(pair.losses.get(timeout=TIMEOUT_S))
        for action in (lambda: pair.gang.step(plan(folder)), pair.gang.reset):
            with pytest.raises(RankLost, match="rank 1 is gone"):
                action()
        assert pair.losses.empty(), "it is told once"


def test_a_rank_killed_in_mid_step_frees_the_compute_thread(tiny: Tiny) -> None:
    folder, _ = tiny("llama")
    step = plan(folder)
    with gang_of_two(config_of_two(folder), folder) as pair:
        pair.signal(signal.SIGSTOP)  # it will not come to the first sum
        failed: queue.Queue[Exception] = queue.Queue()

        def compute() -> None:
            try:
                pair.gang.step(step)
            except Exception as error:
                failed.put(error)

        thread = threading.Thread(target=compute)
        thread.start()
        pair.signal(signal.SIGKILL)
        assert isinstance(failed.get(timeout=TIMEOUT_S), RankLost)
        thread.join()


def test_a_rank_that_hangs_is_given_up(tiny: Tiny) -> None:
    folder, _ = tiny("llama")
    with gang_of_two(config_of_two(folder, timeout_s=0.5), folder) as pair:
        pair.signal(signal.SIGSTOP)
        with pytest.raises(RankLost, match="did not take part"):
            pair.gang.step(plan(folder))
        assert isinstance(pair.losses.get(timeout=TIMEOUT_S), RankLost)
        pair.signal(signal.SIGCONT)  # it finds its link gone


def test_a_step_that_fails_on_rank_0_is_told_as_it_is_and_ends_the_gang(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = tiny("llama")

    def fail(self: StageRunner, step: StepPlan, hidden: None) -> None:
        raise MemoryError("out of memory")

    with gang_of_two(config_of_two(folder), folder) as pair:
        monkeypatch.setattr(StageRunner, "compute", fail)
        with pytest.raises(MemoryError):
            pair.gang.step(StepPlan(StepId(1)))
        assert "out of memory" in str(pair.losses.get(timeout=TIMEOUT_S))


class TooMuchOnRank1(LocalRanks):
    def start(self, spec: RankSpec) -> None:
        kv = replace(spec.config.kv, device_blocks=10**12)
        super().start(replace(spec, config=replace(spec.config, kv=kv)))


def test_a_rank_that_cannot_load_says_why(tiny: Tiny) -> None:
    folder, _ = tiny("llama")
    processes = TooMuchOnRank1()
    with pytest.raises(RankLost, match=r"rank 1: KVCapacityError: kv\.device_blocks"):
        GangOfTwo(config_of_two(folder), folder, processes)
    processes.assert_ended()


class DeadOnRank1(LocalRanks):
    def start(self, spec: RankSpec) -> None:
        super().start(replace(spec, port=1))


def test_a_rank_that_never_joins_is_noticed(tiny: Tiny) -> None:
    folder, _ = tiny("llama")
    processes = DeadOnRank1()
    with pytest.raises(RankLost, match="has ended with status 1"):
        GangOfTwo(config_of_two(folder), folder, processes)
    processes.assert_ended()


def test_strangers_do_not_join() -> None:
    listener = Listener("127.0.0.1", TIMEOUT_S)

    def connect() -> Link:
        return Link(socket.create_connection(("127.0.0.1", listener.port)), TIMEOUT_S)

    silent, stranger, member, double = (connect() for _ in range(4))
    silent.close()
    stranger.send(Joined(1, "guessed"))
    member.send(Joined(2, "secret"))
    double.send(Joined(2, "secret"))
    other = connect()
    other.send(Joined(1, "secret"))
    links = listener.accept(3, "secret", TIMEOUT_S, lambda: None)
    assert sorted(links) == [1, 2]
    for refused in (stranger, double):
        with pytest.raises(RankLost):
            refused.receive()
    with pytest.raises(RankLost, match=r"ranks \[1\] did not join within 0 s"):
        listener.accept(2, "secret", 0.0, lambda: None)
    listener.close()


RANK_0 = """
import sys
from pathlib import Path
from tests.stage.test_gang import GangOfTwo, config_of_two
def main():
    folder = Path(sys.argv[1])
    pair = GangOfTwo(config_of_two(folder), folder)
    print(pair.processes.processes[0].pid, flush=True)
    sys.stdin.read()
if __name__ == "__main__":
    main()
"""


def test_no_rank_outlives_rank_0(tiny: Tiny, tmp_path: Path) -> None:
    folder, _ = tiny("llama")
    script = tmp_path / "rank_0.py"
    script.write_text(RANK_0)
    rank_0 = subprocess.Popen(
        [sys.executable, str(script), str(folder)], stdin=-1, stdout=-1, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert rank_0.stdout is not None
    rank_1 = os.pidfd_open(int(rank_0.stdout.readline()))
    rank_0.kill()
    rank_0.wait()
    ended, _, _ = select.select([rank_1], [], [], TIMEOUT_S)
    assert ended
    os.close(rank_1)
