"""What became of each job: the simulator's side of the scheduler's Observer."""

from typing import Protocol

import msgspec

from loadgen.workload.requests import Request
from services.scheduler.core import Observer
from services.scheduler.job import Job
from shared.ids import JobId, StepId
from shared.messages import FinishReason, Timeline


class JobRecord(msgspec.Struct):
    """arrival, token_times: seconds on the virtual clock, one per output token, the last is the finish
    stalled: seconds that its iterations waited for swap-ins; swaps: transfers of its KV
    recomputes: times its KV was dropped; refused: why it was not taken
    """

    arrival: float
    prompt: int
    output: int
    token_times: list[float] = []
    preemptions: int = 0
    swaps: int = 0
    recomputes: int = 0
    stalled: float = 0.0
    refused: str | None = None
    finished: bool = False

    @property
    def latency(self) -> float:
        """Job completion time, seconds from its arrival."""
        return self.token_times[-1] - self.arrival

    @property
    def latency_per_token(self) -> float:
        """FastServe's metric: seconds per output token, the prompt's are not counted."""
        return self.latency / self.output

    @property
    def first_token(self) -> float:
        """Seconds from its arrival."""
        return self.token_times[0] - self.arrival


class Ledger(Observer, Protocol):
    """Told by the pipeline what the scheduler's Observer does not hear.

    records: of the jobs that are kept in full
    """

    records: list[JobRecord]

    @property
    def open_jobs(self) -> int:
        """Taken and not ended."""
        ...

    def arrived(self, request: Request) -> JobId: ...

    def refused(self, job_id: JobId, reason: str) -> None: ...

    def stalled(self, job_id: JobId, seconds: float) -> None:
        """Its iteration waited for swap-ins."""
        ...

    def swapped(self, job_id: JobId) -> None:
        """Its KV is moved to the other tier."""
        ...

    def recomputed(self, job_id: JobId) -> None:
        """Its KV was dropped."""
        ...


class FullLedger(Ledger):
    """Every job and the time of its every token. Job ids are positions in `records`."""

    def __init__(self) -> None:
        self.records = []

    @property
    def open_jobs(self) -> int:
        return sum(not record.finished and record.refused is None for record in self.records)

    def arrived(self, request: Request) -> JobId:
        self.records.append(JobRecord(request.arrival, request.prompt, request.output))
        return JobId(len(self.records) - 1)

    def refused(self, job_id: JobId, reason: str) -> None:
        self.records[job_id].refused = reason

    def stalled(self, job_id: JobId, seconds: float) -> None:
        self.records[job_id].stalled += seconds

    def swapped(self, job_id: JobId) -> None:
        self.records[job_id].swaps += 1

    def recomputed(self, job_id: JobId) -> None:
        self.records[job_id].recomputes += 1

    def dispatched(self, job: Job, now: float) -> str | None:
        return None

    def completed(self, job: Job, now: float) -> None:
        self.records[job.job_id].token_times.append(now)

    def preempted(self, job: Job, now: float) -> None:
        self.records[job.job_id].preemptions += 1

    def iterated(self, step_id: StepId, batch: list[Job], began: float, now: float) -> None: ...

    def finished(self, job: Job, reason: FinishReason, now: float, timeline: Timeline) -> None:
        self.records[job.job_id].finished = True
