"""What the requests API says of a request and its jobs."""

from typing import Literal

from pydantic import BaseModel, Field

from shared.ids import JobId
from shared.messages import Explanation, JobEventKind, RequestView


class JobReport(BaseModel):
    """One choice."""

    index: int = Field(description="number of the answer, from 0")
    job: str = Field(description="16 hexadecimal digits, as in traces")
    state: Literal["waiting", "running", "preempted", "ended", "unknown"] = Field(
        description="waiting: it never ran; preempted: it ran, and others run in its place"
    )
    queue: str | None = Field(default=None, description="Q1, whose jobs run first, Q2, …")
    runs_in_s: float | None = Field(default=None, description="when it should run next, seconds from now")
    why: str | None = Field(default=None, description="why it does not run")
    demotions: int = Field(default=0, description="how often it went to a lower queue")
    promotions: int = Field(
        default=0, description="how often it went to the first queue for having waited long"
    )
    preemptions: int = Field(default=0, description="how often others ran in its place")
    recomputations: int = Field(default=0, description="how often its KV was dropped and computed again")
    seconds: dict[str, float] = Field(default={}, description="spent in each state so far")


class RequestEntry(BaseModel):
    id: str = Field(description="the client's own name for it, or one made up here (X-Request-Id)")
    object: Literal["request"] = "request"
    answer_id: str = Field(description="chatcmpl-…, cmpl-… or resp_…")
    endpoint: str | None = Field(default=None, description="the path that was asked")
    key: str | None = Field(default=None, description="name of the API key that it came with")
    created: int | None = Field(default=None, description="when it arrived, seconds since 1970")
    ended: bool = Field(description="its answer is complete, failed or was cancelled")
    prompt_tokens: int | None = Field(default=None, description="of all prompts")
    completion_tokens: int | None = Field(default=None, description="of all answers so far")


class RequestReport(RequestEntry):
    choices: list[JobReport] = Field(description="the first 32 answers, one job each")


class RequestList(BaseModel):
    object: Literal["list"] = "list"
    data: list[RequestEntry] = Field(description="oldest first")
    left_out: int = Field(
        default=0, description="unfinished requests that are not listed, as there are too many"
    )


class Cancelled(BaseModel):
    id: str = Field(description="as it was given")
    object: Literal["request.cancelled"] = "request.cancelled"
    cancelled: Literal[True] = True


def entry_of(request: RequestView) -> RequestEntry:
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
