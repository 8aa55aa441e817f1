"""Prints what moving block groups is worth on this CPU, beside the same blocks one by one.

    python -m loadgen.copy_bandwidth [--repeat 7] [--threads 1 2]        about two minutes

Plans of four swaps, 32 blocks each, go through the stage's copier until a tier of 64 MiB or more (beyond
the caches) has been copied. The blocks lie in groups of 1 to 32 at random places. GB/s, the best of the
repetitions, which alternate; each cell: one move per group / one move per block.

memcpy: one copy of the whole tier by one thread

Then the price of a move by itself: what the engine pays to copy one small block, against tensor slices.
"""

import argparse
import random
import time
from collections.abc import Callable, Iterator, Sequence

import torch

from services.stage.copier import Copier
from services.stage.copy_engines import engine_for
from services.stage.tiers import BlockShape, Tiers
from shared.ids import BlockId, JobId, TransferId
from shared.messages import Direction, Directive, Move

_SHAPES = {
    "SmolLM2-135M, 30 layers": BlockShape(30, 16, 3, 64, torch.float32),
    "5 layers (one of 6 stages)": BlockShape(5, 16, 3, 64, torch.float32),
    "1 layer": BlockShape(1, 16, 3, 64, torch.float32),
    "1 layer, 1 of 3 ranks": BlockShape(1, 16, 1, 64, torch.float32),
}
_GROUPS = (1, 2, 4, 8, 16, 32)
_SWAP_BLOCKS, _PLAN_SWAPS = 32, 4
_TIER_BYTES = 64 * 1024**2
_PLAN_BLOCKS = _SWAP_BLOCKS * _PLAN_SWAPS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| one block | copy threads | direction | {' | '.join(map(str, _GROUPS))} | memcpy |")
    print("|---" * (4 + len(_GROUPS)) + "|")
    for name, shape in _SHAPES.items():
        tiers = _tiers(shape)
        for threads in options.threads:
            for direction in Direction:
                cells = [
                    " / ".join(
                        f"{rate:.1f}" for rate in _rates(tiers, threads, direction, group, options.repeat)
                    )
                    for group in _GROUPS
                ]
                limit = tiers.host.nbytes / _best(options.repeat, [lambda t=tiers: t.host.copy_(t.device)])[0]
                size = f"{name}: {shape.bytes // 1024} KiB"
                row = [size, str(threads), str(direction), *cells, f"{limit / 1e9:.1f}"]
                print(f"| {' | '.join(row)} |", flush=True)
    _print_price_of_a_move(options.repeat)


def _tiers(shape: BlockShape) -> Tiers:
    plans = max(1, -(-_TIER_BYTES // (shape.bytes * _PLAN_BLOCKS)))
    dims = (plans * _PLAN_BLOCKS, *shape.dims)
    return Tiers(torch.ones(dims), torch.ones(dims), shape.bytes)  # zeros might share one page


def _rates(tiers: Tiers, threads: int, direction: Direction, group: int, repeat: int) -> tuple[float, float]:
    """GB/s with one move per group, and with one per block."""
    copier = Copier(tiers, threads, lambda _: None, lambda *_: None)
    moves = _scattered(len(tiers.device), group)
    singles = [Move(BlockId(m.src + i), BlockId(m.dst + i), 1) for m in moves for i in range(m.count)]

    def run(moves: Sequence[Move]) -> None:
        copier.reset()
        for plan in _plans(direction, moves):
            copier.start(plan)
            copier.wait([directive.transfer_id for directive in plan])

    grouped, single = _best(repeat, [lambda: run(moves), lambda: run(singles)])
    copier.close()
    size = tiers.device.nbytes / 1e9
    return size / grouped, size / single


def _scattered(blocks: int, group: int) -> list[Move]:
    """Every block once, from a random group of one tier to a random one of the other."""
    sources, targets = (list(range(0, blocks, group)) for _ in range(2))
    random.Random(1).shuffle(sources)
    random.Random(2).shuffle(targets)
    return [Move(BlockId(src), BlockId(dst), group) for src, dst in zip(sources, targets, strict=True)]


def _plans(direction: Direction, moves: Sequence[Move]) -> Iterator[list[Directive]]:
    per_swap = _SWAP_BLOCKS // moves[0].count
    swaps = [
        Directive(TransferId(first), JobId(first), direction, list(moves[first : first + per_swap]))
        for first in range(0, len(moves), per_swap)
    ]
    for first in range(0, len(swaps), _PLAN_SWAPS):
        yield swaps[first : first + _PLAN_SWAPS]


def _print_price_of_a_move(repeat: int) -> None:
    shape = BlockShape(1, 1, 1, 4, torch.float32)  # 32 bytes: all of its time is the call
    tiers = Tiers(torch.zeros((1024, *shape.dims)), torch.zeros((1024, *shape.dims)), shape.bytes)
    moves = _scattered(1024, 1)
    engine, directive = engine_for(tiers), Directive(TransferId(1), JobId(1), Direction.OUT, moves)

    def slices() -> None:
        for move in moves:
            target = tiers.host[move.dst : move.dst + move.count]
            target.copy_(tiers.device[move.src : move.src + move.count])

    ours, theirs = _best(repeat, [lambda: engine.copy(directive), slices])
    print(
        f"\none move: {ours / len(moves) * 1e6:.2f} µs; by tensor slices {theirs / len(moves) * 1e6:.2f} µs"
    )


def _best(repeat: int, calls: Sequence[Callable[[], object]]) -> list[float]:
    """Fastest seconds of each; they take turns, so that a busy moment hits all."""
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(repeat + 1):
        for call, results in zip(calls, times, strict=True):
            began = time.perf_counter()
            call()
            if turn:  # the first one is to warm up
                results.append(time.perf_counter() - began)
    return [min(results) for results in times]


if __name__ == "__main__":
    main()
