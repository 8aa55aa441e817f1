"""What became of each job: the simulator's side of the scheduler's Observer."""

import msgspec

from loadgen.simulate.workload import Request
from services.scheduler.job import Job
from shared.messages import FinishReason


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


class Ledger:
    """Job ids are positions in `records`."""

    def __init__(self) -> None:
        self.records: list[JobRecord] = []

    def arrived(self, request: Request) -> JobRecord:
        record = JobRecord(request.arrival, request.prompt, request.output)
        self.records.append(record)
        return record

    def dispatched(self, job: Job, now: float) -> str | None:
        return None

    def completed(self, job: Job, now: float) -> None:
        self.records[job.job_id].token_times.append(now)

    def preempted(self, job: Job, now: float) -> None:
        self.records[job.job_id].preemptions += 1

    def finished(self, job: Job, reason: FinishReason, now: float) -> None:
        self.records[job.job_id].finished = True
