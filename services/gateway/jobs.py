"""The registry of unfinished jobs: exactly-once, in-order tokens out of at-least-once messages.

        scheduler A            gateway (have)          scheduler B
     start 0: t0 t1  ────────>  0 → 2
     start 1: t1     ────────>  2   known, dropped
     start 3: t3     ────────>  2   a gap: stale
                                2   ── Submit(output=t0 t1) ──>      answered Accepted
                                4   <───────────────────  start 2: t2 t3

Positions alone decide: neither a lost or doubled message nor a new scheduler can change a client's text.
A job is assigned to one pipeline at a time; what another one still says of it is dropped.
"""

import asyncio
from collections.abc import Collection

import msgspec

from services.gateway.pipelines import Server
from shared.clock import Clock
from shared.ids import JobId
from shared.messages import FinishReason, JobTokens, Submit, TokenBatch, TokenLogprobs

_FAILED = (FinishReason.ERROR, FinishReason.ABORT, FinishReason.REFUSED)


class OpenJob:
    """One unfinished job and the stream of its tokens to the HTTP handler.

    trace: W3C traceparent of the request
    output: tokens so far
    stale: the scheduler does not run it, or not from where we are: it must be resubmitted
    pipeline: the one that it is assigned to; base: tokens that it had then
    held: that pipeline's scheduler may hold it, so that it must be told if we stop waiting
    """

    def __init__(self, submit: Submit, trace: str | None, opened: float) -> None:
        self.submit = submit
        self.trace = trace
        self.opened = opened
        self.output: list[int] = list(submit.output)
        self.taken = len(self.output)
        self._logprobs: list[TokenLogprobs] = []
        self._cached = 0
        self.finish: FinishReason | None = None
        self.error: str | None = None
        self.accepted_by: Server | None = None
        self.stale = False
        self.held = False
        self.pipeline = 0
        self.base = 0
        self._news = asyncio.Event()

    @property
    def job_id(self) -> JobId:
        return self.submit.job_id

    def assign(self, pipeline: int) -> None:
        """From here on only its scheduler is listened to."""
        self.pipeline, self.base, self.held = pipeline, len(self.output), True

    def submission(self, now: float) -> Submit:
        """With the tokens so far and the time that it has waited."""
        waited = self.submit.waited + now - self.opened
        return msgspec.structs.replace(self.submit, output=list(self.output), waited=waited)

    async def next(self) -> JobTokens:
        """All tokens that are waiting, at least one unless the job ended; not to be called after that."""
        await self._news.wait()
        self._news.clear()
        start, self.taken = self.taken, len(self.output)
        # They are handed on once; the tokens stay, for a resubmission.
        logprobs, self._logprobs = self._logprobs, []
        return JobTokens(
            self.submit.job_id, start, self.output[start:], self.finish, self.error, logprobs, self._cached
        )

    def take(self, item: JobTokens) -> None:
        """Append what is new in `item`; a gap before it makes the job stale."""
        if self.finish is not None:
            return
        if item.finish is not None and item.finish in _FAILED:
            # Wherever it happened, there is nothing more to come.
            self.fail(item.error or "the job was aborted inside the system", held=False, finish=item.finish)
            return
        known = len(self.output) - item.start
        if known < 0:
            self.stale = True
            return
        if len(item.tokens) < known or (len(item.tokens) == known and item.finish is None):
            return
        self.output += item.tokens[known:]
        self._logprobs += item.logprobs[known:]
        self._cached = item.cached
        self.finish = item.finish
        self.held = item.finish is None
        self._news.set()

    def fail(self, reason: str, *, held: bool, finish: FinishReason = FinishReason.ERROR) -> None:
        if self.finish is None:
            self.finish, self.error, self.held = finish, reason, held
            self._news.set()


class OpenJobs:
    """Pure: no I/O, the time comes from `clock`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._jobs: dict[JobId, OpenJob] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def get(self, job_id: JobId) -> OpenJob | None:
        return self._jobs.get(job_id)

    def open(self, submit: Submit, trace: str | None = None) -> OpenJob:
        job = OpenJob(submit, trace, self._clock.now())
        self._jobs[submit.job_id] = job
        return job

    def accepted(self, job_id: JobId, server: Server, current: Server | None) -> bool:
        """A scheduler took the job; it stays stale if that scheduler is `current` no more.

        Returns False if the job was closed or went elsewhere meanwhile: whoever accepted it must be told to
        abort.
        """
        job = self._jobs.get(job_id)
        if job is None or job.pipeline != server.pipeline:
            return False
        job.accepted_by, job.held = server, True
        job.stale = current is not None and server.superseded_by(current)
        return True

    def deliver(self, batch: TokenBatch) -> bool:
        """Hand new tokens to their jobs; those of closed jobs are dropped. Returns whether a job is stale."""
        stale = False
        # Whoever is woken first is answered first: first tokens do not wait for everybody's next ones.
        for item in sorted(batch.items, key=_goes_on):
            job = self._jobs.get(item.job_id)
            if job is not None and job.pipeline == batch.pipeline:
                job.take(item)
                stale = stale or job.stale
        return stale

    def strays(self, batch: TokenBatch) -> list[JobId]:
        """Jobs that a pipeline goes on with although they went to another one."""
        known = ((item.job_id, self._jobs.get(item.job_id)) for item in batch.items)
        return [job_id for job_id, job in known if job is not None and job.pipeline != batch.pipeline]

    def displace(self, serving: Collection[int]) -> None:
        """Jobs of pipelines that do not serve are better off elsewhere."""
        for job in self._jobs.values():
            if job.accepted_by is not None and job.pipeline not in serving:
                job.stale = True

    def scheduler_replaced(self, current: Server) -> None:
        """Jobs that another scheduler accepted are not known to the new one."""
        for job in self._jobs.values():
            if job.accepted_by is not None and job.accepted_by.superseded_by(current):
                job.stale = True

    def message_lost(self, after: TokenBatch) -> None:
        """A message before `after` is missing: it may have held the last tokens of any job not in `after`."""
        seen = {item.job_id for item in after.items}
        for job_id, job in self._jobs.items():
            if job.accepted_by is not None and job.pipeline == after.pipeline and job_id not in seen:
                job.stale = True

    def stale(self) -> list[OpenJob]:
        """Those that must be submitted again, oldest first."""
        return [job for job in self._jobs.values() if job.stale and job.finish is None]

    def refuse(self, job_id: JobId, reason: str) -> None:
        """No scheduler took the job, and none will."""
        job = self._jobs.get(job_id)
        if job is not None:
            job.fail(reason, held=False)

    def fail_all(self, reason: str) -> None:
        for job in self._jobs.values():
            job.fail(reason, held=True)

    def close(self, job_id: JobId) -> bool:
        """Forget the job. Returns True if a scheduler may still hold it, so that it must be aborted."""
        job = self._jobs.pop(job_id, None)
        return job is not None and job.held


def _goes_on(item: JobTokens) -> bool:
    return item.start > 0
