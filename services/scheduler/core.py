"""The scheduler: which jobs run in the next iteration, and what becomes of them afterwards.

Pure: the shell (or the simulator) tells the time and carries the messages. One iteration is

    plan_request ──> KV-cache manager ──> dispatch ──> stages ──> complete
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Protocol

import msgspec

from services.scheduler.grammars import Grammars
from services.scheduler.history import History
from services.scheduler.job import Job
from services.scheduler.policy import POLICIES
from services.scheduler.tally import Place, Tally
from shared.config import Config
from shared.costmodel import GUESS, CostModel
from shared.ids import JobId, StepId, TransferId
from shared.messages import (
    Candidate,
    Ended,
    Explanation,
    FinishReason,
    Holder,
    JobTokens,
    Limits,
    Outstanding,
    PlanReply,
    PlanRequest,
    Refused,
    StepJob,
    StepPlan,
    StepResult,
    Submit,
    Timeline,
)

VICTIMS = 8
"""Jobs that run last, named in a plan request: one of them frees the blocks of many decode iterations."""

MOST_SEGMENTS = 4000
"""Of the timelines that are told of in one message: some 300 KB."""

MAX_FAILURES = 2
"""A job whose step failed is recomputed; after so many failed steps without a token it ends with an error."""


class Observer(Protocol):
    """Told of what happens to jobs: traces and metrics hang here."""

    def dispatched(self, job: Job, now: float) -> str | None:
        """`job` goes into a step; returns the traceparent for spans of the stages, if they are to report."""
        ...

    def completed(self, job: Job, now: float) -> None:
        """The step is back and the job has a new token."""
        ...

    def preempted(self, job: Job, now: float) -> None:
        """The job could have run again, but others go first."""
        ...

    def iterated(self, step_id: StepId, batch: list[Job], began: float, now: float) -> None:
        """The step with these jobs is back, with tokens or without."""
        ...

    def finished(self, job: Job, reason: FinishReason, now: float, timeline: Timeline) -> None: ...


class Scheduler:
    """Jobs from submit to finish; the policy orders them, the KV-cache manager says which fit.

    depth: batches in flight among which the jobs are shared out; no job is ever in two of them. With several
        stages one more goes whenever the first stage is free, if jobs are left over.
    """

    def __init__(self, config: Config, observer: Observer, limits: Limits) -> None:
        self._config = config.scheduler
        self._observer = observer
        self._limits = limits
        stages, wanted = config.parallel.pipeline_stages, config.scheduler.batches_in_flight
        self.depth = wanted or stages
        self._ahead = 1 if wanted is None and stages > 1 else 0
        self._on_first_stage: set[StepId] = set()
        self.cost: CostModel = GUESS
        self.policy = POLICIES[self._config.policy](self._config, self.cost)
        self._jobs: dict[JobId, Job] = {}
        self._steps: dict[StepId, list[Job]] = {}
        self._next_step = 1
        self._completed: list[StepId] = []
        self._released: list[JobId] = []
        self._ended: list[Ended] = []
        self._just_ran: list[Job] = []
        self._asked_for_some = False  # by the plan request that is answered next
        self.history = History(config.timeline.samples, self.depth + self._ahead)
        self._tally = Tally()
        self.grammars = Grammars()
        self._block_size = config.kv.block_size
        self._reuses_prefixes = config.kv.prefix_capacity > 0
        self._free_blocks = 0
        self._begun: dict[JobId, Job] = {}  # brought in and not run since, or computed in part

    # ------------------------------------------------------------ arrivals and departures

    def submit(self, message: Submit, trace: str | None, now: float) -> Refused | None:
        """Take a job, or say why not. A job that is already here is taken once."""
        if message.job_id in self._jobs:
            return None
        refusal = self._refusal(message)
        if refusal is not None:
            return refusal
        job = Job(message, trace, now)
        if self._reuses_prefixes:
            job.hash_blocks(self._block_size)
        self._jobs[job.job_id] = job
        self.grammars.acquire(job)
        self.policy.add(job, now)
        self._tally.note(job)
        self.history.arrived(job, now)
        return None

    def _refusal(self, message: Submit) -> Refused | None:
        total, limit = len(message.prompt) + message.max_tokens, self._limits.max_tokens_total
        if not message.prompt:
            return Refused(message.job_id, "the prompt has no tokens", "prompt")
        if message.max_tokens <= len(message.output):
            return Refused(message.job_id, f"max_tokens is {message.max_tokens}: nothing to do", "max_tokens")
        if total > limit:
            reason = f"prompt and max_tokens make {total} tokens, the limit is {limit}"
            return Refused(message.job_id, reason, "max_tokens")
        return None

    def tokens_from(self, job_id: JobId, start: int) -> JobTokens | None:
        """Output tokens `start` and later of an unfinished job, for a gateway that missed some."""
        job = self._jobs.get(job_id)
        if job is None or len(job.output) <= start:
            return None
        logprobs = job.logprobs_from(start)
        return JobTokens(job_id, start, job.output[start:], logprobs=logprobs, cached=job.cached)

    def abort(self, job_ids: Iterable[JobId], now: float) -> dict[str, list[JobTokens]]:
        """End jobs whatever they are doing; a step that computes one goes on and its token is ignored.

        Returns the news by receiver, for those who did not ask for it themselves.
        """
        out: defaultdict[str, list[JobTokens]] = defaultdict(list)
        for job_id in job_ids:
            job = self._jobs.get(job_id)
            if job is not None:
                self._end(job, FinishReason.ABORT, now)
                news = JobTokens(job_id, len(job.output), [], FinishReason.ABORT, "it was cancelled")
                out[job.reply_to].append(news)
        return out

    def abort_receiver(self, receiver: str, now: float) -> None:
        """End all jobs of a gateway that is gone."""
        self.abort([job.job_id for job in self._jobs.values() if job.reply_to == receiver], now)

    def set_cost_model(self, cost: CostModel) -> None:
        self.cost = cost
        self.policy.set_cost_model(cost)

    # ------------------------------------------------------------ one iteration

    def plan_request(self, now: float) -> PlanRequest | None:
        """What to ask the KV-cache manager for the next iteration; None when there is nothing to say."""
        candidates, holders = self._candidates(now) if self._has_room() else ([], [])
        self._asked_for_some = bool(candidates)
        if not (candidates or self._completed or self._released):
            return None
        request = PlanRequest(
            StepId(self._next_step),
            candidates,
            holders,
            self._completed,
            self._released,
            self._batch_limit(),
            self._config.max_batch_tokens,
            self._config.chunked_prefill,
            self._ended,
        )
        self._next_step += 1
        self._completed, self._released, self._ended = [], [], []
        return request

    def _has_room(self) -> bool:
        """Whether another batch may go now."""
        if self._on_first_stage:
            return len(self._steps) < self.depth
        return len(self._steps) < self.depth + self._ahead

    def passed(self, step_id: StepId) -> None:
        """The first stage is done with this step and takes the next one: of the jobs that are not in flight,
        those that are first in line now.
        """
        self._on_first_stage.discard(step_id)

    def _candidates(self, now: float) -> tuple[list[Candidate], list[Holder]]:
        """Twice the batch in priority order, so that the KV-cache manager can pass over what does not fit,
        and the jobs that have begun, which it does not send out again; and those that hold KV and run last,
        which it takes for victims.
        """
        wanted = 2 * self._batch_limit()
        for job in self.policy.promote(now):
            self._tally.note(job)
            self.history.promoted(job, now)
        candidates: list[Candidate] = []
        for job, enst in self.policy.upcoming(now):
            if job.in_flight:
                continue
            candidates.append(self._candidate(job, enst))
            if len(candidates) == wanted:
                break
        room_for_all = not self._may_need_room(candidates)
        if room_for_all and not self._begun:
            return candidates, []
        chosen = {candidate.job_id for candidate in candidates}
        for job in self._begun.values():
            if job.job_id not in chosen and not job.in_flight:
                chosen.add(job.job_id)
                candidates.append(self._candidate(job, self.policy.enst(job, now)))
        if room_for_all:
            return candidates, []
        last = self.policy.last_holders(VICTIMS, now)
        return candidates, [Holder(job.job_id, enst) for job, enst in last if job.job_id not in chosen]

    def _candidate(self, job: Job, enst: float) -> Candidate:
        trace = job.trace if job.kv_tokens == 0 else None
        prefix = b"" if job.announced else job.block_hashes
        job.announced = True
        return Candidate(job.job_id, job.new_tokens, job.tokens, enst, trace, prefix)

    def _may_need_room(self, candidates: list[Candidate]) -> bool:
        """Whether the device blocks left by the last plan may not suffice for these candidates."""
        blocks = sum(candidate.new_tokens // self._block_size + 2 for candidate in candidates)
        return blocks > self._free_blocks

    def _batch_limit(self) -> int:
        """With several batches in flight the jobs are shared out among them, or one would take them all."""
        share = math.ceil(len(self._jobs) / self.depth)
        return max(1, min(self._config.max_batch_size, share))

    def dispatch(self, reply: PlanReply, now: float) -> StepPlan | None:
        """The step for the stages, from what the KV-cache manager granted; None if nothing is to be sent."""
        self._free_blocks = reply.free_blocks
        for job_id in reply.dropped:
            job = self._jobs.get(job_id)
            if job is not None:
                job.kv_tokens = 0
                self._begun.pop(job_id, None)
                self.policy.dropped(job)
                self.history.dropped(job, now, "its KV was dropped: no room for it in either tier")
        for directive in reply.directives:
            job = self._jobs.get(directive.job_id)
            if job is not None:
                self.history.moves(directive, job, now)
        for job_id in reply.arriving:
            if job_id in self._jobs:
                self._begun[job_id] = self._jobs[job_id]
        batch: list[Job] = []
        step_jobs: list[StepJob] = []
        for grant in reply.granted:
            job = self._jobs.get(grant.job_id)
            if job is None:
                continue  # aborted while the plan was made
            job.step, job.computing = reply.step_id, grant.tokens
            if job.kv_tokens == 0:
                job.kv_tokens = job.cached = grant.cached
            if job.draws:
                self._begun.pop(job.job_id, None)
            else:
                self._begun[job.job_id] = job
            self.policy.started(job)
            trace = self._observer.dispatched(job, now)
            if job.first_run is None:
                job.first_run = now
            self.history.begins(job, now)
            self._tally.note(job)
            batch.append(job)
            step_jobs.append(
                StepJob(
                    job.job_id,
                    job.token_ids_to_compute(),
                    job.kv_tokens,
                    grant.table,
                    job.sampling if job.draws else None,
                    trace,
                    job.history() if job.draws else None,
                    self.grammars.state(job) if job.draws else None,
                )
            )
        if batch:
            self._note_preemptions(batch, now)
            self._steps[reply.step_id] = batch
            self._on_first_stage.add(reply.step_id)
        elif reply.granted:
            self._completed.append(reply.step_id)  # the KV-cache manager holds it for in flight
        if not batch and self._asked_for_some:
            for job in self._just_ran:
                if self._known(job):
                    self.history.blocked(job)
        if not batch and not reply.directives:
            return None
        self.history.iteration_begins(
            reply.step_id,
            batch,
            now,
            waiting=len(self._jobs) - sum(map(len, self._steps.values())),
            occupancy=reply.occupancy,
            directives=reply.directives,
        )
        forgotten = self.grammars.take_forgotten() if batch else []
        return StepPlan(reply.step_id, step_jobs, reply.directives, reply.waits, forgotten)

    def _note_preemptions(self, batch: list[Job], now: float) -> None:
        """Jobs that came back from their last iteration and are not in the next one."""
        preempted = [job for job in self._just_ran if not job.in_flight and job.job_id in self._jobs]
        if preempted:
            before = {job.job_id for job in self._just_ran}
            instead = next((job.job_id for job in batch if job.job_id not in before), None)
            for job in preempted:
                self._observer.preempted(job, now)
                self.history.preempted(job, now, instead)
        self._just_ran = []

    def complete(self, result: StepResult, now: float) -> dict[str, list[JobTokens]]:
        """Charge the iteration, append its tokens, end what is done. New tokens by receiver."""
        batch = self._steps.pop(result.step_id, None)
        if batch is None:
            return {}
        self.passed(result.step_id)
        self._completed.append(result.step_id)
        began = self.history.iteration_ends(result.step_id, now)
        self._observer.iterated(result.step_id, batch, began, now)
        for job in batch:
            if self._known(job):
                self.history.returns(job, now)
        out: defaultdict[str, list[JobTokens]] = defaultdict(list)
        if result.error is not None:
            for job in batch:
                self._failed(job, result.error, now, out)
            return out
        seconds = sum(result.seconds)
        drawing = [job for job in batch if job.draws]
        scores = result.logprobs or [None] * len(drawing)
        refusals = result.refused or [None] * len(drawing)
        for job in batch:
            job.step = None
            if not job.draws and self._known(job):
                job.kv_tokens += job.computing
                self._goes_on(job, seconds, now)
        for job, token, scored, refusal in zip(drawing, result.tokens, scores, refusals, strict=True):
            if not self._known(job):
                continue  # aborted while it ran
            if refusal is not None:
                news = JobTokens(job.job_id, len(job.output), [], FinishReason.REFUSED, refusal)
                out[job.reply_to].append(news)
                self._end(job, FinishReason.REFUSED, now)
                continue
            job.kv_tokens = job.tokens
            job.append(token, scored)
            self.history.drew(job, now)
            job.failures = 0
            self._observer.completed(job, now)
            reason = job.finish_reason()
            start = len(job.output) - 1
            logprobs = [] if scored is None else [scored]
            out[job.reply_to].append(
                JobTokens(job.job_id, start, [token], reason, logprobs=logprobs, cached=job.cached)
            )
            if reason is None:
                self._goes_on(job, seconds, now)
            else:
                self._end(job, reason, now)
        return out

    def _known(self, job: Job) -> bool:
        """Not so once it was aborted, even if it has come back from another pipeline under the same id."""
        return self._jobs.get(job.job_id) is job

    def _goes_on(self, job: Job, seconds: float, now: float) -> None:
        self._just_ran.append(job)
        before = job.level
        self.policy.ran(job, seconds, now)
        self._tally.note(job)
        if job.level != before:
            self.history.level_changed(job, before, now)

    def _failed(self, job: Job, error: str, now: float, out: defaultdict[str, list[JobTokens]]) -> None:
        job.step = None
        if not self._known(job):
            return
        self._begun.pop(job.job_id, None)
        self.grammars.failed(job)
        job.kv_tokens = 0  # recompute: what the failed step wrote cannot be trusted
        job.failures += 1
        self.history.failed(job, now)
        if job.failures < MAX_FAILURES:
            self.policy.ran(job, 0.0, now)
            self._tally.note(job)
            return
        out[job.reply_to].append(JobTokens(job.job_id, len(job.output), [], FinishReason.ERROR, error))
        self._end(job, FinishReason.ERROR, now)

    def _end(self, job: Job, reason: FinishReason, now: float) -> None:
        del self._jobs[job.job_id]
        self._begun.pop(job.job_id, None)
        self.grammars.release(job)
        completed = reason in (FinishReason.STOP, FinishReason.LENGTH)
        self.policy.remove(job, completed=completed)
        self._tally.forget(job)
        self._released.append(job.job_id)
        if completed and self._reuses_prefixes and job.hash_blocks(self._block_size):
            self._ended.append(Ended(job.job_id, job.block_hashes))
        self._observer.finished(job, reason, now, self.history.ended(job, reason, now))

    def lose_kv(self, now: float) -> None:
        """A new epoch begins: nothing is in flight, no job holds KV, each is recomputed from its tokens."""
        self._completed, self._released, self._ended, self._just_ran = [], [], [], []
        self._free_blocks = 0
        self._begun.clear()
        self.grammars.lost()
        self.history.lost(self._jobs.values(), now)
        self._steps.clear()
        self._on_first_stage.clear()
        self._next_step = 1
        for job in self._jobs.values():
            job.kv_tokens = 0
            job.announced = False
            self.policy.dropped(job)
            if job.in_flight:
                job.step = None
                self.policy.ran(job, 0.0, now)
                self._tally.note(job)

    # ------------------------------------------------------------ what others may know

    @property
    def in_flight(self) -> int:
        """Batches sent to the stages and not back yet."""
        return len(self._steps)

    @property
    def batches(self) -> list[int]:
        """Jobs in each of them."""
        return [len(batch) for batch in self._steps.values()]

    @property
    def policy_name(self) -> str:
        return self._config.policy

    @property
    def max_batch_size(self) -> int:
        return self._config.max_batch_size

    @property
    def unfinished(self) -> int:
        return len(self._jobs)

    def explain(self, job_id: JobId, now: float) -> Explanation:
        """What happened to a job, where it is now and when it should run next."""
        known = self.history.explain(job_id, now)
        job = self._jobs.get(job_id)
        if job is None:
            return known
        enst = 0.0 if job.in_flight else max(0.0, self.policy.enst(job, now))
        return msgspec.structs.replace(known, level=job.level, enst=enst)

    def moved(self, transfer_ids: Iterable[TransferId], now: float) -> None:
        """These copies are complete, on every stage and rank."""
        self.history.moved(transfer_ids, now)

    def timelines(self, job_ids: Iterable[JobId] | None, now: float) -> tuple[list[Timeline], int]:
        """Of unfinished jobs of requests, by default all, the newest first; and how many more there are than
        are told of in one message.
        """
        if job_ids is None:
            wanted = [job for job in self._jobs.values() if job.request_id]
        else:
            wanted = [self._jobs[job_id] for job_id in job_ids if job_id in self._jobs]
        told: list[Timeline] = []
        segments = 0
        for job in reversed(wanted):
            told.append(self.history.timeline(job, now))
            segments += len(told[-1].segments)
            if segments > MOST_SEGMENTS:
                break
        return told, len(wanted) - len(told)

    def outstanding(self) -> dict[str, Outstanding]:
        """What is still to be done, by receiver."""
        sums: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        for job in self._jobs.values():
            mine = sums[job.reply_to]
            mine[0] += 1
            mine[1] += job.new_tokens if job.new_tokens > 1 else 0
            mine[2] += job.tokens
            mine[3] += job.max_tokens - len(job.output)
        return {receiver: Outstanding(*values) for receiver, values in sums.items()}

    def count_jobs(self) -> dict[Place, int]:
        """Jobs by state (waiting: never ran, running, preempted) and queue level."""
        return self._tally.counts()
