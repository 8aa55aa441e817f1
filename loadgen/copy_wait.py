"""Prints how long a step waits for its swap-ins if its thread sleeps, and if it copies what has not begun.

    python -m loadgen.copy_wait [--repeat 50] [--threads 1 2]        about half a minute

A plan brings swaps out and swaps in of 16 blocks each, in groups of 4; the step waits for those in, at once.
Median of the repetitions, which alternate.
"""

import argparse
import statistics
import time
from itertools import count

import torch

from services.stage.copier import Copier
from services.stage.tiers import BlockShape, Tiers
from shared.ids import BlockId, JobId, TransferId
from shared.messages import Direction, Directive, Move

_SWAP_BLOCKS, _GROUP = 16, 4
_SHAPES = {
    "SmolLM2-135M: 720 KiB": BlockShape(30, 16, 3, 64, torch.float32),
    "1 layer: 24 KiB": BlockShape(1, 16, 3, 64, torch.float32),
}
_PLANS = ((0, 1), (0, 4), (4, 1), (4, 4), (8, 2))
"""swaps out, swaps in"""
_ids = count(1)


class _Sleeper(Copier):
    def _copy_unless_begun(self, transfer_id: TransferId) -> None:
        return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeat", type=int, default=50)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| one block | copy threads | swaps out | swaps in | sleeps, ms | copies, ms | ratio |")
    print("|---|---|---|---|---|---|---|")
    for name, shape in _SHAPES.items():
        blocks = _SWAP_BLOCKS * max(sum(plan) for plan in _PLANS)
        tiers = Tiers(torch.ones((blocks, *shape.dims)), torch.ones((blocks, *shape.dims)), shape.bytes)
        for threads in options.threads:
            copiers = [kind(tiers, threads, lambda _: None, lambda *_: None) for kind in (_Sleeper, Copier)]
            for outs, ins in _PLANS:
                sleeps, copies = _measure(copiers, outs, ins, options.repeat)
                row = f"{sleeps:.3f} | {copies:.3f} | {copies / sleeps:.2f}"
                print(f"| {name} | {threads} | {outs} | {ins} | {row} |", flush=True)
            for copier in copiers:
                copier.close()


def _measure(copiers: list[Copier], outs: int, ins: int, repeat: int) -> list[float]:
    times: list[list[float]] = [[] for _ in copiers]
    for _ in range(repeat):
        for copier, results in zip(copiers, times, strict=True):
            plan = [
                _swap(next(_ids), slot, Direction.OUT if slot < outs else Direction.IN)
                for slot in range(outs + ins)
            ]
            began = time.perf_counter()
            copier.start(plan)
            copier.wait([directive.transfer_id for directive in plan[outs:]])
            results.append(time.perf_counter() - began)
            copier.wait([directive.transfer_id for directive in plan])
    return [statistics.median(results) * 1e3 for results in times]


def _swap(transfer_id: int, slot: int, direction: Direction) -> Directive:
    first = slot * _SWAP_BLOCKS
    moves = [Move(BlockId(first + at), BlockId(first + at), _GROUP) for at in range(0, _SWAP_BLOCKS, _GROUP)]
    return Directive(TransferId(transfer_id), JobId(transfer_id), direction, moves)


if __name__ == "__main__":
    main()
