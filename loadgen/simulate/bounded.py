"""A ledger for millions of jobs: of those that ended it keeps three numbers."""

from array import array
from collections.abc import Callable

import msgspec

from loadgen.simulate.gaps import GapHistogram
from loadgen.simulate.ledger import Ledger
from loadgen.workload.requests import Request
from services.scheduler.job import Job
from shared.ids import JobId, StepId
from shared.messages import FinishReason, Timeline

_NOT_YET = -1.0


class _Open(msgspec.Struct, gc=False):
    """arrival, first, last: seconds on the virtual clock, of the request and of its tokens so far"""

    arrival: float
    output: int
    first: float = _NOT_YET
    last: float = _NOT_YET


class BoundedLedger(Ledger):
    """latencies, first_tokens: seconds from the arrival, and outputs: tokens, of ended jobs in that order
    next_id: of the job that will arrive next
    on_token: called with the id and the output tokens so far of every job that has a new one
    on_ended: called with the id and the output tokens of every job that ends, 0 of a refused one
    """

    def __init__(
        self, on_ended: Callable[[JobId, int], None], on_token: Callable[[JobId, int], None] = lambda *_: None
    ) -> None:
        self.records = []
        self.latencies, self.first_tokens, self.outputs = array("d"), array("d"), array("d")
        self.gaps = GapHistogram()
        self.preemptions = self.swaps = self.recomputes = self.refusals = self.most_open = 0
        self._on_ended = on_ended
        self._on_token = on_token
        self._open: dict[JobId, _Open] = {}
        self.next_id = JobId(0)

    @property
    def open_jobs(self) -> int:
        return len(self._open)

    def arrived(self, request: Request) -> JobId:
        job_id = self.next_id
        self.next_id = JobId(job_id + 1)
        self._open[job_id] = _Open(request.arrival, request.output)
        self.most_open = max(self.most_open, len(self._open))
        return job_id

    def refused(self, job_id: JobId, reason: str) -> None:
        self.refusals += 1
        del self._open[job_id]
        self._on_ended(job_id, 0)

    def stalled(self, job_id: JobId, seconds: float) -> None: ...

    def swapped(self, job_id: JobId) -> None:
        self.swaps += 1

    def recomputed(self, job_id: JobId) -> None:
        self.recomputes += 1

    def dispatched(self, job: Job, now: float) -> str | None:
        return None

    def completed(self, job: Job, now: float) -> None:
        mine = self._open[job.job_id]
        if mine.first == _NOT_YET:
            mine.first = now
        else:
            self.gaps.add(now - mine.last)
        mine.last = now
        self._on_token(job.job_id, len(job.output))

    def preempted(self, job: Job, now: float) -> None:
        self.preemptions += 1

    def iterated(self, step_id: StepId, batch: list[Job], began: float, now: float) -> None: ...

    def finished(self, job: Job, reason: FinishReason, now: float, timeline: Timeline) -> None:
        mine = self._open.pop(job.job_id)
        self.latencies.append(mine.last - mine.arrival)
        self.first_tokens.append(mine.first - mine.arrival)
        self.outputs.append(mine.output)
        self._on_ended(job.job_id, mine.output)
