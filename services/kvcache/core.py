"""The KV-cache manager: which blocks of which tier hold which job's KV, and what moves next.

Pure: no I/O and no clock. One instance lives for one scheduler epoch; a new epoch starts with a new one.
"""

from collections.abc import Iterable

from services.kvcache import accounts
from services.kvcache.host import HostTier
from services.kvcache.jobs import JobKV, Residence
from services.kvcache.keeping import keep
from services.kvcache.planning import PlanInProgress
from services.kvcache.pool import BlockPool
from services.kvcache.prefixes import CachedBlock
from services.kvcache.reserve import Reserve
from services.kvcache.transfers import Transfers
from services.kvcache.victims import later_than, victims
from shared.config import KVConfig
from shared.ids import JobId, StepId, TransferId
from shared.messages import Candidate, Direction, Directive, Occupancy, PlanReply, PlanRequest


class KVCache:
    """Plans one iteration at a time.

    copies: stages x ranks; a transfer is complete when that many have acknowledged it
    """

    def __init__(self, config: KVConfig, copies: int) -> None:
        self._mode = config.swap_mode
        self.block_size = config.block_size
        self.device = BlockPool(config.device_blocks)
        self._host = HostTier(config)
        self.prefixes = self._host.prefixes
        self._reserve = Reserve(config.device_blocks, config.reserve_blocks)
        self._jobs: dict[JobId, JobKV] = {}
        self._steps: dict[StepId, list[JobKV]] = {}
        self._transfers = Transfers(copies)
        self._leaving = 0  # device blocks that become free when the transfers out are complete

    @property
    def host(self) -> BlockPool:
        return self._host.pool

    @property
    def _tiers(self) -> accounts.Tiers:
        return ("device", self.device), ("host", self.host)

    # ------------------------------------------------------------ one iteration

    def plan(self, request: PlanRequest) -> PlanReply:
        """Give blocks to the candidates in their order until the batch or token limit is reached.

        A candidate that finds no free block makes room: the jobs with the largest ENST go to the host, or
        are dropped when the host is full too. Blocks on their way out are owed to the candidate that needed
        them first, so a later, smaller one cannot starve it.
        """
        plan = PlanInProgress(request)
        for step in request.completed:
            self._complete(step)
        prefixes = {ended.job_id: ended.prefix for ended in request.ended}
        for job_id in request.released:
            self._release(job_id, prefixes.get(job_id, b""), plan)
        self._note_candidates(request)

        self._fill(request.candidates, plan)
        self._end_deadlock(plan)
        if self._mode == "proactive":
            self._look_ahead(plan)
            self._reserve.planned(plan.new_blocks)
        kept = self._reserve.blocks if self._mode == "proactive" else 0
        device, host = self.device, self.host
        occupancy = Occupancy(device.total - device.free, device.total, host.total - host.free, host.total)
        return plan.reply(device.free - kept, occupancy)

    def _fill(self, candidates: Iterable[Candidate], plan: PlanInProgress) -> None:
        for candidate in candidates:
            if plan.full:
                return
            self._consider(candidate, plan)
        if not plan.granted:
            self._run_what_arrives(plan)

    def _consider(self, candidate: Candidate, plan: PlanInProgress) -> None:
        job = self._jobs.get(candidate.job_id)
        held = candidate.context - candidate.new_tokens
        if job is not None and (
            job.released or job.step is not None or job.residence is Residence.MOVING_OUT or job.stale(held)
        ):
            return  # a step or a copy still touches its blocks
        if job is None and held:
            plan.dropped.append(candidate.job_id)
            return
        run = self.prefixes.longest(candidate.job_id, candidate.context) if job is None else []
        job = job or JobKV(candidate.job_id, candidate.trace)
        found = job.found or len(run) * self.block_size
        tokens = plan.share_of(candidate.new_tokens - found)
        if not tokens:
            return
        plan.seen.add(candidate.job_id)

        missing = self._blocks(held + found + tokens) - len(job.device)
        waits = bool(run) or job.residence is not Residence.DEVICE
        if (missing > 0 or waits) and not self._has_room(job, missing, run, plan):
            return
        if run and not self.prefixes.holds(run):
            # It gave way to a job that had to go to the host; now there is room, for what is still here.
            self._consider(candidate, plan)
            return
        self._place(job, missing, run, plan)
        if waits and self._mode == "proactive":
            plan.arriving.append((job, candidate))  # the batch does not wait for it: it runs in a later one
            return
        self._grant(job, tokens, candidate, plan)

    def _has_room(self, job: JobKV, missing: int, run: list[CachedBlock], plan: PlanInProgress) -> bool:
        """Whether the job's blocks are there to be given, and its KV may come in if that is elsewhere."""
        comes_in = bool(run) or job.residence is Residence.HOST
        if plan.fills_in and (comes_in or missing + plan.owed > self.device.free):
            return False
        if not self._make_room(missing, plan):
            plan.owed += missing
            return False
        return True

    def _place(self, job: JobKV, missing: int, run: list[CachedBlock], plan: PlanInProgress) -> None:
        """Give the job its blocks, and bring its KV in."""
        if missing > 0:
            self._give(job, missing, plan)
        if job.residence is Residence.HOST:
            plan.directives.append(self._swap_in(job))
        elif run:
            plan.directives.append(self._bring_prefix(job, run))

    def _run_what_arrives(self, plan: PlanInProgress) -> None:
        """Nothing else can be computed, so the stages wait for the copies."""
        for job, candidate in plan.arriving:
            if plan.full:
                return
            tokens = plan.share_of(candidate.new_tokens - job.found)
            if tokens and self._blocks(job.tokens + tokens) <= len(job.device):
                self._grant(job, tokens, candidate, plan)

    def _grant(self, job: JobKV, tokens: int, candidate: Candidate, plan: PlanInProgress) -> None:
        job.begun = job.tokens + tokens < candidate.context
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
            for victim in victims(self._jobs, plan):
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

    def _room_on_host(self, victim: JobKV, plan: PlanInProgress) -> bool:
        """Make the host take `victim` by dropping jobs there that are due even later; False if it cannot."""
        need = self._blocks_to_save(victim)
        if self._host.make_room(need, victim):
            return True
        later = self._host.due_after(victim, need, plan.seen)
        for job in later:
            plan.dropped.append(job.job_id)
            self._drop(job)
        return self._host.make_room(need, victim)

    def _end_deadlock(self, plan: PlanInProgress) -> None:
        """Jobs that only wait for each other's blocks: one is recomputed later, and another goes on.

        First go those that could not run now anyway, then the candidate with the fewest tokens; the one with
        the most gets the room. So each deadlock brings somebody nearer to its next token, which nobody takes
        away again, however the order of the others changes.
        """
        wanted = {candidate.job_id for candidate in plan.request.candidates}
        while not plan.granted and plan.owed and self.idle:
            holding = [job for job in self._jobs.values() if job.device]
            if not holding:
                return
            least = min(holding, key=lambda job: (job.job_id in wanted, job.tokens, -job.enst))
            plan.dropped.append(least.job_id)
            self._drop(least)
            plan.start_over()
            self._fill(sorted(plan.request.candidates, key=self._tokens_held, reverse=True), plan)

    def _tokens_held(self, candidate: Candidate) -> int:
        job = self._jobs.get(candidate.job_id)
        return job.tokens if job is not None else 0

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
        for victim in later_than(due, self._jobs, plan):
            if target + plan.owed <= self.device.free + self._leaving:
                break
            if not self._host.make_room(self._blocks_to_save(victim), victim):
                break
            plan.directives.append(self._swap_out(victim))

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
        job.residence, job.begun = Residence.MOVING_IN, True
        return self._transfers.start(job, Direction.IN, job.host, job.device[: len(job.host)])

    def _bring_prefix(self, job: JobKV, run: list[CachedBlock]) -> Directive:
        """A new job begins with what ended ones have left."""
        self.prefixes.read(run)
        job.prefix, job.tokens = run, len(run) * self.block_size
        job.found = job.tokens
        job.residence, job.begun = Residence.MOVING_IN, True
        sources = [cached.block for cached in run]
        return self._transfers.start(job, Direction.IN, sources, job.device[: len(run)])

    def transfer_done(self, transfer_id: TransferId, stage: int, rank: int) -> Directive | None:
        """One stage and rank has copied its share; the directive is returned once all have.

        Only then do the source blocks change hands: a copy may still read them before.
        """
        moved = self._transfers.acknowledge(transfer_id, stage, rank)
        if moved is None:
            return None
        directive, job = moved
        if directive.direction is Direction.OUT:
            self._moved_out(job)
        else:
            self._moved_in(job)
        if job.released and job.idle:
            self._drop(job)
        return directive

    def _moved_out(self, job: JobKV) -> None:
        self._leaving -= len(job.device)
        self.device.release(job.take_device())
        if job.prefix:
            self.prefixes.written(job.prefix)
            return
        job.residence = Residence.HOST
        job.saved = job.tokens
        self._host.arrived(job)

    def _moved_in(self, job: JobKV) -> None:
        job.residence = Residence.DEVICE
        if job.prefix:
            self._host.borrowed(job)
        else:
            self._host.copied_back(job)

    # ------------------------------------------------------------ job ends

    def _complete(self, step: StepId) -> None:
        for job in self._steps.pop(step, []):
            job.step = None
            job.tokens = job.planned
            if job.released and job.idle:
                self._drop(job)

    def _release(self, job_id: JobId, prefix: bytes, plan: PlanInProgress) -> None:
        self.prefixes.forget(job_id)
        job = self._jobs.get(job_id)
        if job is None:
            return
        job.released = True
        if not job.idle:
            return
        if prefix and job.residence is Residence.DEVICE:
            self._keep(job, prefix, plan)
        if job.idle:
            self._drop(job)

    def _keep(self, job: JobKV, prefix: bytes, plan: PlanInProgress) -> None:
        """For jobs that begin like this one. What is not on the host yet holds its device blocks until it is;
        the others go back with the job.
        """
        sources, targets = keep(job, prefix, self.prefixes, self.host, self.block_size)
        if not sources:
            return
        going = set(sources)
        self.device.release([block for block in job.take_device() if block not in going])
        job.extend(sources)
        self._host.forget(job)
        job.prefix, job.residence, job.trace = targets, Residence.MOVING_OUT, None
        self._leaving += len(sources)
        host_blocks = [cached.block for cached in targets]
        plan.directives.append(self._transfers.start(job, Direction.OUT, sources, host_blocks))

    def _drop(self, job: JobKV) -> None:
        self.device.release(job.device)
        self._host.forget(job)
        del self._jobs[job.job_id]

    # ------------------------------------------------------------ bookkeeping

    def _note_candidates(self, request: PlanRequest) -> None:
        for candidate in request.candidates:
            if candidate.prefix:
                self.prefixes.announce(candidate.job_id, candidate.prefix)
            job = self._jobs.get(candidate.job_id)
            if job is None:
                continue
            if job.stale(candidate.context - candidate.new_tokens) and job.idle:
                self._drop(job)  # before blocks are shared out: an earlier candidate may need them
            else:
                self._host.due(job, candidate.enst)
        for holder in request.holders:
            job = self._jobs.get(holder.job_id)
            if job is not None:
                self._host.due(job, holder.enst)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def _blocks_saved(self, job: JobKV) -> int:
        """Host blocks that need not be written again; one that was not full has changed since."""
        return job.saved // self.block_size

    def _blocks_to_save(self, job: JobKV) -> int:
        return self._blocks(job.tokens) - self._blocks_saved(job)

    @property
    def idle(self) -> bool:
        """No step and no transfer is under way."""
        return not self._steps and not self._transfers

    def trace_of_transfer(self, transfer_id: TransferId) -> str | None:
        """Traceparent of the job that moves, while it does."""
        job = self._transfers.job_of(transfer_id)
        return job.trace if job else None

    @property
    def cached_blocks(self) -> int:
        """Host blocks that hold prefixes of ended jobs."""
        return len(self.prefixes)

    def occupancy(self) -> dict[str, dict[str, int]]:
        """Blocks by tier and state."""
        return accounts.occupancy(self._tiers, self._jobs.values(), self.prefixes)

    def check(self) -> None:
        """Raises IntegrityError unless every block is free or has exactly one owner, in both tiers."""
        accounts.check(self._tiers, self._jobs.values(), self.prefixes)
