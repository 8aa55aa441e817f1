"""The KV-cache manager: which blocks of which tier hold which job's KV, and what moves next.

Pure: no I/O and no clock. One instance lives for one scheduler epoch; a new epoch starts with a new one.
"""

import struct
from collections.abc import Iterable, Iterator
from itertools import pairwise

from services.kvcache.jobs import JobKV, Residence
from services.kvcache.pool import BlockPool, coalesce
from shared.config import KVConfig
from shared.errors import SkipjoinError
from shared.ids import BlockId, JobId, StepId, TransferId
from shared.messages import Candidate, Direction, Directive, Grant, PlanReply, PlanRequest


class IntegrityError(SkipjoinError):
    """A block was lost, doubled or shared by two owners."""


class KVCache:
    """Plans one iteration at a time.

    copies: stages x ranks; a transfer is complete when that many have acknowledged it
    """

    def __init__(self, config: KVConfig, copies: int) -> None:
        self._config = config
        self.block_size = config.block_size
        self._copies = copies
        self.device = BlockPool(config.device_blocks)
        self.host = BlockPool(config.host_blocks, growing=False)
        self._jobs: dict[JobId, JobKV] = {}
        self._steps: dict[StepId, list[JobKV]] = {}
        self._transfers: dict[TransferId, tuple[Directive, set[tuple[int, int]]]] = {}
        self._next_transfer = 1
        self._leaving = 0  # device blocks that become free when the transfers out are complete

    # ------------------------------------------------------------ one iteration

    def plan(self, request: PlanRequest) -> PlanReply:
        """Give blocks to the candidates in their order until the batch or token limit is reached.

        A candidate that finds no free block makes room: the jobs with the largest ENST go to the host, or
        are dropped when the host is full too. Blocks on their way out are owed to the candidate that needed
        them first, so a later, smaller one cannot starve it.
        """
        for step in request.completed:
            self._complete(step)
        for job_id in request.released:
            self._release(job_id)
        self._note_enst(request)

        plan = _PlanInProgress(request)
        for candidate in request.candidates:
            if len(plan.granted) == request.batch_limit:
                break
            if plan.granted and plan.tokens + candidate.new_tokens > request.token_limit:
                continue
            plan.seen.add(candidate.job_id)
            self._consider(candidate, plan)
        return plan.reply(self.device.free)

    def _consider(self, candidate: Candidate, plan: "_PlanInProgress") -> None:
        job = self._jobs.get(candidate.job_id)
        held = candidate.context - candidate.new_tokens
        if job is not None and (
            job.released or job.step is not None or job.residence is Residence.MOVING_OUT
        ):
            return  # a step or a copy out still reads its blocks
        if job is not None and job.tokens != held:
            # What is here is not what the scheduler counts on (its step failed): start over.
            if not job.idle:
                return
            self._drop(job)
            job = None
        if job is None:
            if held:
                plan.dropped.append(candidate.job_id)
                return
            job = JobKV(candidate.job_id, candidate.trace)

        missing = self._blocks(candidate.context) - len(job.device)
        if not self._make_room(missing, plan):
            plan.owed += missing
            return
        job.device += self.device.allocate(missing, after=job.device[-1] if job.device else None)
        self._jobs[job.job_id] = job
        if job.residence is Residence.HOST:
            plan.directives.append(self._swap_in(job))
        if job.transfer is not None:
            plan.waits.append(job.transfer)
        job.step, job.planned = plan.step_id, candidate.context
        self._steps.setdefault(plan.step_id, []).append(job)
        plan.tokens += candidate.new_tokens
        plan.granted.append(Grant(job.job_id, struct.pack(f"<{len(job.device)}i", *job.device)))

    def _make_room(self, missing: int, plan: "_PlanInProgress") -> bool:
        """True if `missing` blocks may be taken now; otherwise they are being freed or cannot be yet."""
        if missing == 0:
            return True
        victims: Iterator[JobKV] | None = None
        while missing + plan.owed > self.device.free + self._leaving:
            victims = victims or self._victims(plan)
            victim = next(victims, None)
            if victim is None:
                break
            if self._room_on_host(victim, plan):
                plan.directives.append(self._swap_out(victim))
            else:
                plan.dropped.append(victim.job_id)
                self._drop(victim)
        return missing + plan.owed <= self.device.free

    def _victims(self, plan: "_PlanInProgress") -> Iterator[JobKV]:
        """Jobs that may give up their device blocks, largest ENST first.

        The scheduler names those that run last; only when they do not suffice are all looked at.
        """
        named = [entry.job_id for entry in (*plan.request.holders, *plan.request.candidates)]
        yield from self._idle_on_device(
            [self._jobs[job_id] for job_id in named if job_id in self._jobs], plan
        )
        yield from self._idle_on_device(self._jobs.values(), plan)

    def _idle_on_device(self, jobs: Iterable[JobKV], plan: "_PlanInProgress") -> list[JobKV]:
        idle = [
            job
            for job in jobs
            if job.residence is Residence.DEVICE and job.idle and job.job_id not in plan.seen
        ]
        idle.sort(key=lambda job: job.enst, reverse=True)
        return idle

    def _room_on_host(self, victim: JobKV, plan: "_PlanInProgress") -> bool:
        """Make the host take `victim` by dropping jobs there that are due even later; False if it cannot."""
        if self._config.swap_mode == "recompute":
            return False
        need = self._blocks(victim.tokens)
        if need <= self.host.free:
            return True
        later = sorted(
            (
                job
                for job in self._jobs.values()
                if job.residence is Residence.HOST and job.enst > victim.enst and job.job_id not in plan.seen
            ),
            key=lambda job: job.enst,
        )
        if need > self.host.free + sum(len(job.host) for job in later):
            return False
        while need > self.host.free:
            job = later.pop()
            plan.dropped.append(job.job_id)
            self._drop(job)
        return True

    # ------------------------------------------------------------ transfers

    def _swap_out(self, job: JobKV) -> Directive:
        written = job.device[: self._blocks(job.tokens)]
        job.host = self.host.allocate(len(written))
        job.residence = Residence.MOVING_OUT
        self._leaving += len(job.device)
        return self._transfer(job, Direction.OUT, written, job.host)

    def _swap_in(self, job: JobKV) -> Directive:
        job.residence = Residence.MOVING_IN
        return self._transfer(job, Direction.IN, job.host, job.device[: len(job.host)])

    def _transfer(
        self, job: JobKV, direction: Direction, sources: list[BlockId], destinations: list[BlockId]
    ) -> Directive:
        transfer_id = TransferId(self._next_transfer)
        self._next_transfer += 1
        job.transfer = transfer_id
        directive = Directive(transfer_id, job.job_id, direction, coalesce(sources, destinations))
        self._transfers[transfer_id] = (directive, set())
        return directive

    def transfer_done(self, transfer_id: TransferId, stage: int, rank: int) -> Directive | None:
        """One stage and rank has copied its share; the directive is returned once all have.

        Only then do the source blocks change hands: a copy may still read them before.
        """
        if transfer_id not in self._transfers:
            return None
        directive, acknowledged = self._transfers[transfer_id]
        acknowledged.add((stage, rank))
        if len(acknowledged) < self._copies:
            return None
        del self._transfers[transfer_id]
        job = self._jobs[directive.job_id]
        job.transfer = None
        if directive.direction is Direction.OUT:
            self._leaving -= len(job.device)
            self.device.release(job.device)
            job.device = []
            job.residence = Residence.HOST
        else:
            self.host.release(job.host)
            job.host = []
            job.residence = Residence.DEVICE
        if job.released and job.idle:
            self._drop(job)
        return directive

    # ------------------------------------------------------------ job ends

    def _complete(self, step: StepId) -> None:
        for job in self._steps.pop(step, []):
            job.step = None
            job.tokens = job.planned
            if job.released and job.idle:
                self._drop(job)

    def _release(self, job_id: JobId) -> None:
        job = self._jobs.get(job_id)
        if job is None:
            return
        job.released = True
        if job.idle:
            self._drop(job)

    def _drop(self, job: JobKV) -> None:
        self.device.release(job.device)
        self.host.release(job.host)
        del self._jobs[job.job_id]

    # ------------------------------------------------------------ bookkeeping

    def _note_enst(self, request: PlanRequest) -> None:
        for entry in (*request.candidates, *request.holders):
            job = self._jobs.get(entry.job_id)
            if job is not None:
                job.enst = entry.enst

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    @property
    def idle(self) -> bool:
        """No step and no transfer is under way."""
        return not self._steps and not self._transfers

    def trace_of_transfer(self, transfer_id: TransferId) -> str | None:
        """Traceparent of the job that moves, while it does."""
        entry = self._transfers.get(transfer_id)
        return self._jobs[entry[0].job_id].trace if entry else None

    def occupancy(self) -> dict[str, dict[str, int]]:
        """Blocks by tier and state: free, held (a job's, at rest), moving, cached."""
        counts = {
            tier: {"free": pool.free, "held": 0, "moving": 0, "cached": 0}
            for tier, pool in (("device", self.device), ("host", self.host))
        }
        for job in self._jobs.values():
            state = "moving" if job.moving else "held"
            counts["device"][state] += len(job.device)
            counts["host"][state] += len(job.host)
        return counts

    def check(self) -> None:
        """Every block is free or has exactly one owner, in both tiers.

        Raises IntegrityError naming the tier and the blocks.
        """
        for name, pool, owned in (
            ("device", self.device, [block for job in self._jobs.values() for block in job.device]),
            ("host", self.host, [block for job in self._jobs.values() for block in job.host]),
        ):
            seen = sorted([*pool.free_blocks(), *owned])
            if seen != list(range(pool.total)):
                lost = set(range(pool.total)) - set(seen)
                doubled = {block for block, after in pairwise(seen) if block == after}
                raise IntegrityError(f"{name} tier: blocks lost {sorted(lost)}, doubled {sorted(doubled)}")


class _PlanInProgress:
    """What has been decided so far in one call of `plan`.

    owed: free or leaving blocks that belong to candidates which were blocked earlier in this plan
    seen: candidates already looked at; they are never victims of later ones
    """

    def __init__(self, request: PlanRequest) -> None:
        self.request = request
        self.step_id = request.step_id
        self.granted: list[Grant] = []
        self.directives: list[Directive] = []
        self.waits: list[TransferId] = []
        self.dropped: list[JobId] = []
        self.seen: set[JobId] = set()
        self.tokens = 0
        self.owed = 0

    def reply(self, free_blocks: int) -> PlanReply:
        dropped = list(dict.fromkeys(self.dropped))
        return PlanReply(self.step_id, self.granted, self.directives, self.waits, dropped, free_blocks)
