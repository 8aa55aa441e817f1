"""The host tier: KV of jobs that wait there, copies kept of jobs that went back, prefixes of ended jobs."""

from collections.abc import Container

from sortedcontainers import SortedKeyList

from services.kvcache.jobs import JobKV, Residence
from services.kvcache.pool import BlockPool
from services.kvcache.prefixes import PrefixCache
from shared.config import KVConfig
from shared.ids import BlockId, JobId


class HostTier:
    """Prefixes give way first, then kept copies, the oldest before the others: no job is lost with them."""

    def __init__(self, config: KVConfig) -> None:
        self.pool = BlockPool(config.host_blocks, growing=config.reuse)
        self.prefixes = PrefixCache(config, self.pool)
        self._reuse = config.reuse
        self._block_size = config.block_size
        self._waiting = SortedKeyList(key=_by_place)
        self._moved: dict[JobId, JobKV] = {}  # their ENST has changed since they were sorted in
        self._kept: dict[JobId, JobKV] = {}  # oldest first

    def make_room(self, blocks: int, owner: JobKV) -> bool:
        """Whether `blocks` more are free for `owner`; prefixes and copies kept of others give way."""
        self.prefixes.give_way(blocks - self.pool.free)
        if blocks > self.pool.free:
            for job in [job for job in self._kept.values() if job is not owner]:
                self._give_up_copy(job)
                self.prefixes.give_way(blocks - self.pool.free)  # what it had borrowed, too
                if blocks <= self.pool.free:
                    break
        return blocks <= self.pool.free

    def due_after(self, victim: JobKV, blocks: int, spared: Container[JobId]) -> list[JobKV]:
        """The jobs that must go so that `blocks` are free, all due later than `victim`; none if they do not
        suffice.
        """
        self._sort()
        chosen: list[JobKV] = []
        found = self.pool.free
        for job in reversed(self._waiting):
            if found >= blocks or job.enst <= victim.enst:
                break
            if job.job_id not in spared:
                chosen.append(job)
                found += len(job.own_host)
        return chosen if found >= blocks else []

    def extend(self, job: JobKV, first: int, count: int) -> list[BlockId]:
        """Host blocks `first` to `first + count` of a job that is swapped out: those it has, and new ones."""
        self._kept.pop(job.job_id, None)
        wanted = first + count - len(job.host)
        if wanted > 0:
            job.host += self.pool.allocate(wanted, after=job.host[-1] if job.host else None)
        return job.host[first : first + count]

    def arrived(self, job: JobKV) -> None:
        job.place = job.enst
        self._waiting.add(job)

    def leaves(self, job: JobKV) -> None:
        self._moved.pop(job.job_id, None)
        self._waiting.remove(job)

    def copied_back(self, job: JobKV) -> None:
        """Its KV is on the device again; the copy is kept, unless that is switched off."""
        if self._reuse:
            self._kept[job.job_id] = job
        else:
            self._give_up_copy(job)

    def borrowed(self, job: JobKV) -> None:
        """What it began with has come in; as a kept copy that stays, too, unless that is switched off."""
        run, job.prefix = job.prefix, []
        if not self._reuse:
            self.prefixes.release(run)
            return
        job.borrowed = run
        job.host = [cached.block for cached in run]
        job.saved = len(run) * self._block_size  # steps may have written more by now
        self._kept[job.job_id] = job

    def due(self, job: JobKV, enst: float) -> None:
        """Note when it runs next, seconds from now."""
        job.enst = enst
        if job.residence is Residence.HOST:
            self._moved[job.job_id] = job

    def _sort(self) -> None:
        """Only when somebody has to go: ENST changes with every plan, the host is rarely full."""
        for job in self._moved.values():
            self._waiting.remove(job)
            job.place = job.enst
            self._waiting.add(job)
        self._moved.clear()

    def forget(self, job: JobKV) -> None:
        if job.residence is Residence.HOST:
            self.leaves(job)
        self._give_up_copy(job)

    def _give_up_copy(self, job: JobKV) -> None:
        self._kept.pop(job.job_id, None)
        self.pool.release(job.own_host)
        self.prefixes.release(job.borrowed)
        job.host, job.borrowed, job.saved = [], [], 0


def _by_place(job: JobKV) -> float:
    return job.place
