"""What the requests API says of a request and its jobs."""

from typing import Literal

from pydantic import BaseModel

from services.gateway.open_requests import OpenRequest
from shared.ids import JobId
from shared.messages import Explanation, JobEventKind


class JobReport(BaseModel):
    """One choice. Times are seconds; `queue` is Q1 for the first."""

    index: int
    job: str
    state: Literal["waiting", "running", "preempted", "ended", "unknown"]
    queue: str | None = None
    runs_in_s: float | None = None
    why: str | None = None
    demotions: int = 0
    promotions: int = 0
    preemptions: int = 0
    recomputations: int = 0
    seconds: dict[str, float] = {}


class RequestEntry(BaseModel):
    id: str
    object: Literal["request"] = "request"
    answer_id: str
    endpoint: str | None = None
    key: str | None = None
    created: int | None = None
    ended: bool
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class RequestReport(RequestEntry):
    choices: list[JobReport]


class RequestList(BaseModel):
    object: Literal["list"] = "list"
    data: list[RequestEntry]


class Cancelled(BaseModel):
    id: str
    object: Literal["request.cancelled"] = "request.cancelled"
    cancelled: Literal[True] = True


def entry_of(request: OpenRequest) -> RequestEntry:
    return RequestEntry(
        id=request.request_id,
        answer_id=request.answer_id,
        endpoint=request.endpoint,
        key=request.key,
        created=request.created,
        ended=request.ended,
        prompt_tokens=request.prompt_tokens,
        completion_tokens=request.completion_tokens,
    )


def job_report(index: int, known: Explanation, own: set[JobId], *, others: bool) -> JobReport:
    """own: the request's jobs; others: jobs of other requests may be named"""
    job = f"{known.job_id:016x}"
    if not known.found:
        return JobReport(
            index=index, job=job, state="unknown", why="the scheduler does not know it (any more)"
        )

    def count(kind: JobEventKind) -> int:
        return known.counts.get(kind.value, 0)

    return JobReport.model_validate(
        {
            "index": index,
            "job": job,
            "state": known.state,
            "queue": f"Q{known.level + 1}",
            "runs_in_s": known.enst,
            "why": _why(known, own, others),
            "demotions": count(JobEventKind.DEMOTED),
            "promotions": count(JobEventKind.PROMOTED),
            "preemptions": count(JobEventKind.PREEMPTED),
            "recomputations": count(JobEventKind.DROPPED),
            "seconds": {state: round(seconds, 6) for state, seconds in known.seconds.items()},
        }
    )


def _why(known: Explanation, own: set[JobId], others: bool) -> str | None:
    """Why a job waits; None for one that does not."""
    if known.state not in ("waiting", "preempted") or known.enst is None:
        return None
    if known.enst > 0:
        when = f"jobs ahead of it in Q1 to Q{known.level + 1} may still use {known.enst:.3g} s"
    else:
        when = "it is due, but the batch or the KV blocks are full"
    if known.state == "waiting":
        return f"it has not run yet: {when}"
    last = next(event for event in reversed(known.events) if event.kind is JobEventKind.PREEMPTED)
    instead = "other jobs run"
    if last.other is not None and (others or last.other in own):
        instead = f"job {last.other:016x} runs"
    return f"{instead} in its place since {last.at:.3g} s after its arrival: {when}"
