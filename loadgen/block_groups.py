"""Prints how contiguous the KV blocks of swapped jobs are: block groups beside the lowest free ids first.

python -m loadgen.block_groups [--blocks 4096] [--batch 16 64] [--occupancy 0.8 0.9 0.95] [--rounds 2000]

A seeded history of jobs with ShareGPT's lengths is drawn once and replayed on each pool. Each round every
job of the batch grows by a block (16 tokens) and one in eight makes way for another; the last that made way
is swapped out when the device is beyond the occupancy, and comes back when its turn comes. Both tiers have
the same number of blocks and are filled to the occupancy. The first quarter is not counted.

moves: contiguous copies of one swap
µs: CPU time of one allocate or release
copy time: 10 µs a move and the bytes at 25 GB/s, as a share of that with the lowest free ids first

Then what an operation costs in a tier of 100,000 blocks in the worst case: every other block is free.
"""

import argparse
import heapq
import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import NamedTuple, Protocol

from loadgen.simulate.models import LAUNCH_S, PCIE
from loadgen.workload.lengths import named
from services.kvcache.pool import BlockPool, coalesce
from shared.ids import BlockId, JobId

_BLOCK_TOKENS = 16
_GIVES_WAY = 1 / 8
_WARM_UP = 0.25
_KIB = 1024

_BLOCK_BYTES = {
    "Llama-3-70B, one of 8 ranks": 16 * 40 * _KIB,
    "SmolLM2-135M float32": 720 * _KIB,
    "Llama-3-8B": 16 * 128 * _KIB,
    "OPT-13B": 16 * 800 * _KIB,
}
"""Bytes that one stage and rank copies for a block of 16 tokens."""


class Pool(Protocol):
    def allocate(self, count: int, after: BlockId | None = None) -> list[BlockId]: ...

    def release(self, blocks: Iterable[BlockId]) -> None: ...


class LowestFirst:
    """What block groups replaced: a heap of the free ids."""

    def __init__(self, total: int) -> None:
        self._free = [BlockId(block) for block in range(total)]

    def allocate(self, count: int, after: BlockId | None = None) -> list[BlockId]:
        return [heapq.heappop(self._free) for _ in range(count)]

    def release(self, blocks: Iterable[BlockId]) -> None:
        for block in blocks:
            heapq.heappush(self._free, block)


_POOLS: dict[str, tuple[Callable[[int], Pool], Callable[[int], Pool]]] = {
    "lowest first": (LowestFirst, LowestFirst),
    "best fit": (
        lambda total: BlockPool(total, growing=False),
        lambda total: BlockPool(total, growing=False),
    ),
    "block groups": (BlockPool, lambda total: BlockPool(total, growing=False)),
}
"""The pools of device and host."""


class Action(Enum):
    BEGIN = "begin"
    GROW = "grow"
    OUT = "out"
    IN = "in"
    END = "end"


class Event(NamedTuple):
    """blocks: of BEGIN, how many it begins with"""

    action: Action
    job: JobId
    blocks: int = 1


class History:
    """What happens to the jobs, whichever blocks they get."""

    def __init__(self, blocks: int, batch: int, occupancy: float, rounds: int, seed: int) -> None:
        self.events: list[Event] = []
        self._blocks = blocks
        self._limit = occupancy * blocks
        self._device_held = self._host_held = 0
        self._draw = random.Random(seed)
        self._lengths = -(-named("sharegpt")(1 << 17, seed).cumsum(axis=1) // _BLOCK_TOKENS)
        self._goal: dict[JobId, int] = {}
        self._device: dict[JobId, int] = {}
        self._host: dict[JobId, int] = {}
        self._running: list[JobId] = []
        self._waiting: deque[JobId] = deque()  # in the order in which they gave way
        for _ in range(rounds):
            self._round(batch)

    def _round(self, batch: int) -> None:
        for job in list(self._running):
            if self._device[job] >= self._goal[job]:
                self._running.remove(job)
                self._end(job)
            elif self._draw.random() < _GIVES_WAY:
                self._running.remove(job)
                self._waiting.append(job)
        while len(self._running) < batch:
            full = self._device_held + self._host_held >= 2 * self._limit
            job = self._resume(self._waiting.popleft()) if full and self._waiting else self._begin()
            self._running.append(job)
        for job in self._draw.sample(self._running, len(self._running)):
            if self._device[job] < self._goal[job]:
                self._make_room(1)
                self._device[job] += 1
                self._device_held += 1
                self.events.append(Event(Action.GROW, job))

    def _begin(self) -> JobId:
        job = JobId(len(self._goal))
        prompt, total = map(int, self._lengths[job])
        self._make_room(prompt)
        self._goal[job], self._device[job] = total, prompt
        self._device_held += prompt
        self.events.append(Event(Action.BEGIN, job, prompt))
        return job

    def _resume(self, job: JobId) -> JobId:
        if job in self._host:
            self._make_room(self._host[job])
            self._device[job] = blocks = self._host.pop(job)
            self._device_held += blocks
            self._host_held -= blocks
            self.events.append(Event(Action.IN, job))
        return job

    def _end(self, job: JobId) -> None:
        self._device_held -= self._device.pop(job)
        self.events.append(Event(Action.END, job))

    def _make_room(self, blocks: int) -> None:
        """The job that waits longest until its turn goes first; without room on the host it is given up."""
        while self._device_held + blocks > self._limit:
            victim = next((job for job in reversed(self._waiting) if job in self._device), None)
            if victim is None:
                return
            if self._host_held + self._device[victim] > self._blocks:
                self._waiting.remove(victim)
                self._end(victim)
            else:
                self._host[victim] = moved = self._device.pop(victim)
                self._device_held -= moved
                self._host_held += moved
                self.events.append(Event(Action.OUT, victim))


class Result(NamedTuple):
    swaps: int
    moves: int
    blocks: int
    seconds: float
    """CPU time of one allocate or release"""

    def copy_seconds(self, block_bytes: int) -> float:
        return self.moves * LAUNCH_S + self.blocks * block_bytes / PCIE


def replay(events: list[Event], device: Pool, host: Pool) -> Result:
    on_device: dict[JobId, list[BlockId]] = {}
    on_host: dict[JobId, list[BlockId]] = {}
    swaps = moves = blocks = operations = 0
    cpu_ns = 0
    for number, (action, job, count) in enumerate(events):
        sources: list[BlockId] = []
        targets: list[BlockId] = []
        operations += 1
        began = time.thread_time_ns()
        match action:
            case Action.BEGIN:
                on_device[job] = device.allocate(count)
            case Action.GROW:
                on_device[job] += device.allocate(count, on_device[job][-1])
            case Action.END:
                device.release(on_device.pop(job))
            case Action.OUT | Action.IN:
                here, there, tier, other = (
                    (on_device, on_host, device, host)
                    if action is Action.OUT
                    else (on_host, on_device, host, device)
                )
                sources = here.pop(job)
                targets = there[job] = other.allocate(len(sources))
                tier.release(sources)
                operations += 1
        cpu_ns += time.thread_time_ns() - began
        if sources and number >= _WARM_UP * len(events):
            swaps += 1
            moves += len(coalesce(sources, targets))
            blocks += len(sources)
    return Result(swaps, moves, blocks, cpu_ns * 1e-9 / operations)


def worst_case(total: int, count: int, repeat: int = 200) -> tuple[float, float]:
    """CPU seconds of allocate and release of `count` blocks when no free block has a free neighbour."""
    pool = BlockPool(total)
    pool.release(pool.allocate(total)[::2])
    began = time.thread_time()
    tables = [pool.allocate(count) for _ in range(repeat)]
    allocated = time.thread_time()
    for table in tables:
        pool.release(table)
    return (allocated - began) / repeat, (time.thread_time() - allocated) / repeat


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--blocks", type=int, default=4096, help="of each tier")
    parser.add_argument("--batch", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--occupancy", type=float, nargs="+", default=[0.8, 0.9, 0.95])
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    columns = " | ".join(f"copy time, {model}" for model in _BLOCK_BYTES)
    print(f"| batch | occupancy | pool | blocks a move | moves a swap | µs | {columns} |")
    print("|---|---|---|---|---|---|" + "---|" * len(_BLOCK_BYTES))
    for batch in options.batch:
        for occupancy in options.occupancy:
            history = History(options.blocks, batch, occupancy, options.rounds, options.seed)
            base: Result | None = None
            for name, (device, host) in _POOLS.items():
                result = replay(history.events, device(options.blocks), host(options.blocks))
                base = base or result
                ratios = " | ".join(
                    f"{result.copy_seconds(size) / base.copy_seconds(size):.2f}"
                    for size in _BLOCK_BYTES.values()
                )
                print(
                    f"| {batch} | {occupancy:.0%} | {name} | {result.blocks / result.moves:.1f}"
                    f" | {result.moves / result.swaps:.1f} | {1e6 * result.seconds:.1f} | {ratios} |",
                    flush=True,
                )
    print("\n| blocks | allocate, µs | release, µs |\n|---|---|---|")
    for count in (1, 20):
        allocate, release = worst_case(100_000, count)
        print(f"| {count} | {1e6 * allocate:.0f} | {1e6 * release:.0f} |")


if __name__ == "__main__":
    main()
