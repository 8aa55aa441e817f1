"""Copies under way: each is complete when every stage and rank has acknowledged its share."""

from services.kvcache.jobs import JobKV
from services.kvcache.pool import coalesce
from shared.ids import BlockId, TransferId
from shared.messages import Direction, Directive


class Transfers:
    """copies: stages x ranks"""

    def __init__(self, copies: int) -> None:
        self._copies = copies
        self._under_way: dict[TransferId, tuple[Directive, JobKV, set[tuple[int, int]]]] = {}
        self._next = 1

    def __len__(self) -> int:
        return len(self._under_way)

    def start(
        self, job: JobKV, direction: Direction, sources: list[BlockId], destinations: list[BlockId]
    ) -> Directive:
        """The directive for the stages; neighbouring blocks are one copy."""
        transfer_id = TransferId(self._next)
        self._next += 1
        directive = Directive(transfer_id, job.job_id, direction, coalesce(sources, destinations))
        job.transfer = transfer_id
        self._under_way[transfer_id] = (directive, job, set())
        return directive

    def acknowledge(self, transfer_id: TransferId, stage: int, rank: int) -> tuple[Directive, JobKV] | None:
        """One stage and rank is done; returns what moved once all are. Repeated ones change nothing."""
        if transfer_id not in self._under_way:
            return None
        directive, job, acknowledged = self._under_way[transfer_id]
        acknowledged.add((stage, rank))
        if len(acknowledged) < self._copies:
            return None
        del self._under_way[transfer_id]
        job.transfer = None
        return directive, job

    def job_of(self, transfer_id: TransferId) -> JobKV | None:
        entry = self._under_way.get(transfer_id)
        return entry[1] if entry else None
