"""What the blocks of both tiers hold, so that a job that reads another's KV, or none, is noticed."""

import struct

from shared.messages import Direction, Directive, StepJob

Entry = int | None
"""One token's KV, which is a function of that token and all before it; None: nobody knows."""


class KVContents:
    """Copies are the test's worst case: they read when they begin or end, and nothing may differ between."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._device: dict[tuple[int, int], Entry] = {}
        self._host: dict[tuple[int, int], Entry] = {}
        self._begun: dict[int, list[Entry]] = {}

    def compute(self, job: StepJob, tokens: list[int], *, failed: bool) -> None:
        """A step of a job that has `tokens`, prompt and output: it reads what is before and writes."""
        end = job.start + len(job.tokens)
        assert job.tokens == tokens[job.start : end]
        table = struct.unpack(f"<{len(job.table) // 4}i", job.table)
        truth = 0
        for position in range(end):
            slot = (table[position // self._block_size], position % self._block_size)
            truth = hash((truth, tokens[position]))
            if position >= job.start:
                self._device[slot] = None if failed else truth
            else:
                found = self._device.get(slot)
                assert found == truth, f"job {job.job_id}, position {position}: {found} is there"

    def begin(self, directive: Directive) -> None:
        self._begun[directive.transfer_id] = self._read(directive)

    def finish(self, directive: Directive) -> None:
        entries = self._read(directive)
        assert entries == self._begun.pop(directive.transfer_id), "written while it was copied"
        slots = iter(entries)
        target = self._device if directive.direction is Direction.IN else self._host
        for move in directive.moves:
            for block in range(move.dst, move.dst + move.count):
                for offset in range(self._block_size):
                    target[block, offset] = next(slots)

    def _read(self, directive: Directive) -> list[Entry]:
        source = self._host if directive.direction is Direction.IN else self._device
        return [
            source.get((block, offset))
            for move in directive.moves
            for block in range(move.src, move.src + move.count)
            for offset in range(self._block_size)
        ]
