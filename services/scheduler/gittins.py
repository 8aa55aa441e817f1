"""The Gittins index over multi-level queues: lengths are not known, but their distribution is learned.

Skip-join MLFQ assumes that a job which has run for long will go on for long. Where lengths are alike that is
wrong: the job that has run longest is nearest to its end. The index decides it by what finished jobs were
like. It is quantised to the queues, so that it changes rarely, and alpha bounds waiting as in the paper.
"""

from collections import OrderedDict

from services.scheduler.job import Job
from services.scheduler.lengths import LengthDistribution
from services.scheduler.mlfq import SHORTEST_S, SkipJoinMLFQ
from shared.config import SchedulerConfig
from shared.costmodel import CostModel

ENOUGH = 64
"""Finished jobs before a distribution is trusted."""

_KINDS = 512
"""Distributions that are kept, of tenants and prompt lengths; tenants are named by clients."""


Kind = tuple[str, int]
"""Tenant and the prompt's length in powers of two."""


class Gittins(SkipJoinMLFQ):
    """Skip-join until enough jobs have finished; then the queue is the one whose quantum covers the index."""

    def __init__(self, config: SchedulerConfig, cost: CostModel) -> None:
        super().__init__(config, cost)
        self._all = LengthDistribution()
        self._by_kind: OrderedDict[Kind, LengthDistribution] = OrderedDict()  # least recently learned first

    def remove(self, job: Job, completed: bool) -> None:
        super().remove(job, completed)
        if completed and job.output:
            self._all.add(len(job.output))
            for kind in _kinds(job):
                self._by_kind.setdefault(kind, LengthDistribution()).add(len(job.output))
                self._by_kind.move_to_end(kind)
            while len(self._by_kind) > _KINDS:
                self._by_kind.popitem(last=False)

    def entry_level(self, job: Job) -> int:
        level = self._index_level(job)
        return super().entry_level(job) if level is None else level

    def ran(self, job: Job, seconds: float, now: float) -> None:
        used_up = job.used + seconds >= job.quantum
        level = self._index_level(job) if used_up else None
        if level is None or self._queue_of[job.job_id] is not self._class(job.priority)[level]:
            super().ran(job, seconds, now)
            return
        # It is still where it belongs: it keeps its place, or equal jobs would take turns and all end late.
        self._renew(job)
        self._wait(job, now)

    def next_level(self, job: Job) -> int:
        level = self._index_level(job)
        return super().next_level(job) if level is None else level

    def _index_level(self, job: Job) -> int | None:
        """The queue whose quantum covers the job's index; None while too little is known."""
        lengths = self._lengths_of(job)
        if lengths is None:
            return None
        token = max(self.cost.decode(job.tokens), SHORTEST_S)
        if job.output:
            index = lengths.index(len(job.output))
        else:
            index = lengths.index_before_start(self.next_iteration(job) / token)
        return self.level_for(index * token)

    def _lengths_of(self, job: Job) -> LengthDistribution | None:
        """Of the narrowest kind of which enough jobs have finished."""
        for kind in _kinds(job):
            lengths = self._by_kind.get(kind)
            if lengths is not None and len(lengths) >= ENOUGH:
                return lengths
        return self._all if len(self._all) >= ENOUGH else None


def _kinds(job: Job) -> list[Kind]:
    """Jobs that a job may be like: with as long a prompt and of the same tenant, then of any tenant."""
    prompt = len(job.prompt).bit_length()
    return [(job.tenant, prompt), ("", prompt)] if job.tenant else [("", prompt)]
