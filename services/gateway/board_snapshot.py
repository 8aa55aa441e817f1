"""One snapshot of the board, as its watchers get it: complete, so that none needs an earlier one."""

from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel, Field

from services.gateway.pipeline_view import PipelineView
from shared.ids import JobId
from shared.messages import JobView, Latency, QueueView, SchedulerView, TierView


class BoardJob(BaseModel):
    job: str = Field(description="16 hexadecimal digits; chatcmpl-… of them is understood by /v1/requests")
    request_id: str | None = Field(description="X-Request-Id, if the gateway that answers has the request")
    state: Literal["waiting", "running", "preempted"] = Field(description="waiting: it never ran")
    output: int = Field(description="tokens so far")
    prompt: int = Field(description="tokens of the prompt")
    priority: int = Field(description="lower runs first")
    waits_s: float = Field(description="since its last token or its arrival, seconds; 0 while it runs")


class BoardQueue(BaseModel):
    queue: str = Field(description="Q1, whose jobs run first, Q2, …")
    quantum_s: float | None = Field(description="time that a job gets here, seconds; null: no quanta")
    waiting: int = Field(description="jobs that never ran")
    running: int = Field(description="jobs in a batch now")
    preempted: int = Field(description="jobs that ran, and others run in their place")
    jobs: list[BoardJob] = Field(description="the first 100, in the order in which they should run")


class BoardTier(BaseModel):
    tier: Literal["device", "host"] = Field(description="where the blocks are")
    total: int = Field(description="blocks")
    held: int = Field(description="blocks of jobs, at rest")
    moving: int = Field(description="blocks that are being copied")
    cached: int = Field(description="blocks of copies and prefixes, which give way to whatever needs room")


class BoardLatency(BaseModel):
    count: int = Field(description="how often it was measured in the last minute")
    p50_s: float | None = Field(description="half of them were shorter, seconds; null: none was measured")
    p95_s: float | None = Field(description="95 of 100 were shorter, seconds; null: none was measured")


class PipelineBoard(BaseModel):
    """One pipeline. Rates and shares are means over about three seconds; null: not known yet."""

    pipeline: int = Field(description="its number, from 0")
    serving: bool = Field(description="whether it gets new requests")
    reason: str | None = Field(description="why it cannot serve")
    policy: str | None = Field(default=None, description="scheduler.policy; null: the scheduler is away")
    queues: list[BoardQueue] = Field(default=[], description="from Q1")
    batches: list[int] = Field(default=[], description="jobs in each batch in flight")
    batch_limit: int | None = Field(default=None, description="scheduler.max_batch_size")
    mean_batch: float | None = Field(default=None, description="tokens drawn per iteration")
    kv: list[BoardTier] = Field(default=[], description="both tiers; empty: its manager did not answer")
    utilisation: list[float | None] = Field(default=[], description="by stage, share of the time it was busy")
    tokens_per_s: float | None = Field(default=None, description="tokens drawn")
    jobs_per_s: float | None = Field(default=None, description="jobs ended; a job is one answer of a request")
    iterations_per_s: float | None = Field(default=None, description="iterations completed")
    tokens: int | None = Field(default=None, description="drawn since the scheduler started")
    jobs_ended: int | None = Field(default=None, description="since the scheduler started")
    first_token: BoardLatency | None = Field(default=None, description="from arrival to the first token")
    between_tokens: BoardLatency | None = Field(default=None, description="between the tokens of a job")

    @property
    def complete(self) -> bool:
        """What can be known is known, also what takes two looks."""
        return self.policy is None or self.tokens_per_s is not None


class BoardSnapshot(BaseModel):
    object: Literal["board"] = "board"
    at: float = Field(description="seconds since 1970")
    pipelines: list[PipelineBoard] = Field(description="by number")


def board_of(
    view: PipelineView, before: PipelineView | None, name_of: Callable[[JobId], str | None]
) -> PipelineBoard:
    """before: an earlier look at the same scheduler, for the rates
    name_of: a job's request, if it is known here
    """
    now = view.scheduler
    result = PipelineBoard(
        pipeline=view.pipeline, serving=not view.failure, reason=view.failure or None, kv=_tiers(view)
    )
    if now is None:
        return result
    result.policy = now.policy
    result.queues = [_queue(queue, name_of) for queue in now.queues]
    result.batches, result.batch_limit = now.batches, now.max_batch_size
    result.tokens, result.jobs_ended = now.tokens, now.ended
    result.first_token, result.between_tokens = _latency(now.first_token), _latency(now.between_tokens)
    result.utilisation = [None] * len(now.busy)
    if before is not None and before.scheduler is not None:
        _add_rates(result, before.scheduler, now)
    return result


def _add_rates(result: PipelineBoard, before: SchedulerView, now: SchedulerView) -> None:
    seconds = now.at - before.at
    if seconds <= 0:
        return
    tokens, iterations = now.tokens - before.tokens, now.iterations - before.iterations
    result.tokens_per_s = tokens / seconds
    result.jobs_per_s = (now.ended - before.ended) / seconds
    result.iterations_per_s = iterations / seconds
    result.mean_batch = tokens / iterations if iterations else None
    # An iteration counts when its result is there, so that a long one may count for more than has passed.
    result.utilisation = [
        min(1.0, (after - earlier) / seconds) for earlier, after in zip(before.busy, now.busy, strict=True)
    ]


def _queue(queue: QueueView, name_of: Callable[[JobId], str | None]) -> BoardQueue:
    return BoardQueue(
        queue=f"Q{queue.level + 1}",
        quantum_s=queue.quantum or None,
        waiting=queue.waiting,
        running=queue.running,
        preempted=queue.preempted,
        jobs=[_job(job, name_of(job.job_id)) for job in queue.jobs],
    )


def _job(job: JobView, name: str | None) -> BoardJob:
    return BoardJob.model_validate(
        {
            "job": f"{job.job_id:016x}",
            "request_id": name,
            "state": job.state,
            "output": job.output,
            "prompt": job.prompt,
            "priority": job.priority,
            "waits_s": round(job.waits, 3),
        }
    )


def _tiers(view: PipelineView) -> list[BoardTier]:
    return [_tier(tier) for tier in view.kv.tiers] if view.kv else []


def _tier(tier: TierView) -> BoardTier:
    return BoardTier.model_validate(
        {
            "tier": tier.name,
            "total": tier.total,
            "held": tier.held,
            "moving": tier.moving,
            "cached": tier.cached,
        }
    )


def _latency(latency: Latency) -> BoardLatency:
    known = latency.count > 0
    return BoardLatency(
        count=latency.count, p50_s=latency.p50 if known else None, p95_s=latency.p95 if known else None
    )
