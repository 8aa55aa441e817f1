"""The KV-cache manager: which blocks of which tier hold which job's KV, and what moves next.

Pure: no I/O and no clock. One instance lives for one scheduler epoch; a new epoch starts with a new one.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise

from services.kvcache.host import HostTier
from services.kvcache.jobs import JobKV, Residence
from services.kvcache.planning import PlanInProgress
from services.kvcache.pool import BlockPool
from services.kvcache.reserve import Reserve
from services.kvcache.transfers import Transfers
from shared.config import KVConfig
from shared.errors import SkipjoinError
from shared.ids import JobId, StepId, TransferId
from shared.messages import Candidate, Direction, Directive, PlanReply, PlanRequest


class IntegrityError(SkipjoinError):
    """A block was lost, doubled or shared by two owners."""


class KVCache:
    """Plans one iteration at a time.

    copies: stages x ranks; a transfer is complete when that many have acknowledged it
    """

    def __init__(self, config: KVConfig, copies: int) -> None:
        self._mode = config.swap_mode
        self.block_size = config.block_size
        self.device = BlockPool(config.device_blocks)
        self._host = HostTier(config)
        self._reserve = Reserve(config.device_blocks, config.reserve_blocks)
        self._jobs: dict[JobId, JobKV] = {}
        self._steps: dict[StepId, list[JobKV]] = {}
        self._transfers = Transfers(copies)
        self._leaving = 0  # device blocks that become free when the transfers out are complete

    @property
    def host(self) -> BlockPool:
        return self._host.pool

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

        plan = PlanInProgress(request)
        self._fill(plan)
        if self._mode == "defer":
            self._end_deadlock(plan)
        if self._mode == "proactive":
            self._look_ahead(plan)
            self._reserve.planned(plan.new_blocks)
        kept = self._reserve.blocks if self._mode == "proactive" else 0
        return plan.reply(self.device.free - kept)

    def _fill(self, plan: PlanInProgress) -> None:
        for candidate in plan.request.candidates:
            if plan.full:
                return
            self._consider(candidate, plan)
        if not plan.granted:
            self._run_what_arrives(plan)

    def _consider(self, candidate: Candidate, plan: PlanInProgress) -> None:
        tokens = plan.share_of(candidate)
        if not tokens:
            return
        plan.seen.add(candidate.job_id)
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
        if job is None and held:
            plan.dropped.append(candidate.job_id)
            return
        job = job or JobKV(candidate.job_id, candidate.trace)

        missing = self._blocks(held + tokens) - len(job.device)
        waits = job.residence is not Residence.DEVICE
        if (missing > 0 or waits) and not self._place(job, missing, plan):
            return
        if waits and self._mode == "proactive":
            plan.arriving.append((job, candidate))  # the batch does not wait for it: it runs in a later one
            return
        self._grant(job, tokens, plan)

    def _place(self, job: JobKV, missing: int, plan: PlanInProgress) -> bool:
        """Give the job its blocks, and bring its KV in; False if there is no room for it now."""
        if plan.fills_in and (job.residence is Residence.HOST or missing + plan.owed > self.device.free):
            return False
        if not self._make_room(missing, plan):
            plan.owed += missing
            return False
        self._give(job, max(0, missing), plan)
        if job.residence is Residence.HOST:
            plan.directives.append(self._swap_in(job))
        return True

    def _run_what_arrives(self, plan: PlanInProgress) -> None:
        """Nothing else can be computed, so the stages wait for the copies."""
        for job, candidate in plan.arriving:
            if plan.full:
                return
            tokens = plan.share_of(candidate)
            if tokens and self._blocks(job.tokens + tokens) <= len(job.device):
                self._grant(job, tokens, plan)

    def _grant(self, job: JobKV, tokens: int, plan: PlanInProgress) -> None:
        plan.grant(job, tokens)
        self._steps.setdefault(plan.step_id, []).append(job)

    def _give(self, job: JobKV, blocks: int, plan: PlanInProgress) -> None:
        if not job.device and job.residence is Residence.DEVICE:
            plan.new_blocks += blocks
        job.extend(self.device.allocate(blocks, after=job.device[-1] if job.device else None))
        self._jobs[job.job_id] = job

    # ------------------------------------------------------------ room on the device

    def _make_room(self, missing: int, plan: PlanInProgress) -> bool:
        """True if `missing` blocks may be taken now; otherwise they are being freed or cannot be yet."""
        if missing <= 0:
            return True
        wanted = missing + plan.owed
        if wanted > self.device.free + self._leaving and self._mode != "defer":
            for victim in self._victims(plan):
                self._evict(victim, plan)
                if wanted <= self.device.free + self._leaving:
                    break
        return wanted <= self.device.free

    def _evict(self, victim: JobKV, plan: PlanInProgress) -> None:
        """To the host, or, if that has no room, out of memory."""
        if self._mode != "recompute" and self._room_on_host(victim, plan):
            plan.directives.append(self._swap_out(victim))
        else:
            plan.dropped.append(victim.job_id)
            self._drop(victim)

    def _victims(self, plan: PlanInProgress) -> Iterator[JobKV]:
        """Jobs that may give up their device blocks: largest ENST first, those that have just been brought in
        last of all.

        The scheduler names those that run last; only when they do not suffice are all looked at.
        """
        named = [entry.job_id for entry in (*plan.request.holders, *plan.request.candidates)]
        idle = self._idle_on_device([self._jobs[job_id] for job_id in named if job_id in self._jobs], plan)
        yield from (job for job in idle if not job.brought_in)
        yield from (job for job in self._idle_on_device(self._jobs.values(), plan) if not job.brought_in)
        yield from self._idle_on_device(self._jobs.values(), plan)

    def _idle_on_device(self, jobs: Iterable[JobKV], plan: PlanInProgress) -> list[JobKV]:
        idle = [
            job
            for job in jobs
            if job.residence is Residence.DEVICE and job.idle and job.job_id not in plan.seen
        ]
        idle.sort(key=lambda job: job.enst, reverse=True)
        return idle

    def _room_on_host(self, victim: JobKV, plan: PlanInProgress) -> bool:
        """Make the host take `victim` by dropping jobs there that are due even later; False if it cannot."""
        need = self._blocks(victim.tokens) - self._blocks_saved(victim)
        if self._host.make_room(need, victim):
            return True
        later = self._host.due_after(victim, need, plan.seen)
        for job in later:
            plan.dropped.append(job.job_id)
            self._drop(job)
        return self._host.make_room(need, victim)

    def _end_deadlock(self, plan: PlanInProgress) -> None:
        """Jobs that only wait for each other's blocks: those that run last are recomputed later."""
        while not plan.granted and plan.owed and self.idle:
            victims = [job for job in self._jobs.values() if job.idle]
            if not victims:
                return
            last = max(victims, key=lambda job: job.enst)
            plan.dropped.append(last.job_id)
            self._drop(last)
            plan.owed = 0
            self._fill(plan)

    # ------------------------------------------------------------ ahead of need

    def _look_ahead(self, plan: PlanInProgress) -> None:
        """While this batch computes: bring in the jobs that run soon, and free blocks for arrivals.

        Room is made only by jobs that run later than those that come in, and by copies, never by dropping.
        """
        reserve = self._reserve.blocks
        target, due = reserve, 0.0
        for candidate in plan.request.candidates:
            job = self._jobs.get(candidate.job_id)
            if job is None or job.residence is not Residence.HOST or job.released:
                continue
            need = self._blocks(candidate.context) - len(job.device)
            if need + plan.owed + reserve > self.device.free:
                target, due = need + reserve, candidate.enst
                break  # in order: what comes later must not take its place
            self._give(job, need, plan)
            plan.directives.append(self._swap_in(job))
        for victim in self._later_than(due, plan):
            if target + plan.owed <= self.device.free + self._leaving:
                break
            need = self._blocks(victim.tokens) - self._blocks_saved(victim)
            if not self._host.make_room(need, victim):
                break
            plan.directives.append(self._swap_out(victim))

    def _later_than(self, due: float, plan: PlanInProgress) -> Iterator[JobKV]:
        """Jobs on the device that run after `due` seconds, the last first; no candidate is among them."""
        for holder in plan.request.holders:
            job = self._jobs.get(holder.job_id)
            if job is None or holder.enst <= due:
                continue
            if job.residence is Residence.DEVICE and job.idle and not job.brought_in:
                yield job

    # ------------------------------------------------------------ transfers

    def _swap_out(self, job: JobKV) -> Directive:
        """Only blocks that were written since the last time."""
        first = self._blocks_saved(job)
        written = job.device[first : self._blocks(job.tokens)]
        targets = self._host.extend(job, first, len(written))
        job.residence = Residence.MOVING_OUT
        self._leaving += len(job.device)
        return self._transfers.start(job, Direction.OUT, written, targets)

    def _swap_in(self, job: JobKV) -> Directive:
        self._host.leaves(job)
        job.residence, job.brought_in = Residence.MOVING_IN, True
        return self._transfers.start(job, Direction.IN, job.host, job.device[: len(job.host)])

    def transfer_done(self, transfer_id: TransferId, stage: int, rank: int) -> Directive | None:
        """One stage and rank has copied its share; the directive is returned once all have.

        Only then do the source blocks change hands: a copy may still read them before.
        """
        moved = self._transfers.acknowledge(transfer_id, stage, rank)
        if moved is None:
            return None
        directive, job = moved
        if directive.direction is Direction.OUT:
            self._leaving -= len(job.device)
            self.device.release(job.take_device())
            job.residence = Residence.HOST
            job.saved = job.tokens
            self._host.arrived(job)
        else:
            job.residence = Residence.DEVICE
            self._host.copied_back(job)
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
        self._host.forget(job)
        del self._jobs[job.job_id]

    # ------------------------------------------------------------ bookkeeping

    def _note_enst(self, request: PlanRequest) -> None:
        for entry in (*request.candidates, *request.holders):
            job = self._jobs.get(entry.job_id)
            if job is not None:
                self._host.due(job, entry.enst)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def _blocks_saved(self, job: JobKV) -> int:
        """Host blocks that need not be written again; one that was not full has changed since."""
        return job.saved // self.block_size

    @property
    def idle(self) -> bool:
        """No step and no transfer is under way."""
        return not self._steps and not self._transfers

    def trace_of_transfer(self, transfer_id: TransferId) -> str | None:
        """Traceparent of the job that moves, while it does."""
        job = self._transfers.job_of(transfer_id)
        return job.trace if job else None

    def occupancy(self) -> dict[str, dict[str, int]]:
        """Blocks by tier and state: free, held (a job's, at rest), moving, cached (also on the device)."""
        counts = {
            tier: {"free": pool.free, "held": 0, "moving": 0, "cached": 0}
            for tier, pool in (("device", self.device), ("host", self.host))
        }
        for job in self._jobs.values():
            state = "moving" if job.moving else "held"
            counts["device"][state] += len(job.device)
            on_device = job.residence is Residence.DEVICE
            counts["host"]["cached" if on_device else state] += len(job.host)
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
