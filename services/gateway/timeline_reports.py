"""What the API says of timelines."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from pydantic import BaseModel, Field

from shared.messages import WAITING, IterationSample, JobState, LevelChange, Segment, Timeline


class TimelineSegment(BaseModel):
    state: JobState = Field(
        description="gateway: before it was submitted; queued: without KV; preempted: its KV is on the "
        "device and others run; on_host: its KV is in host memory; recompute: prefill again, as its KV was "
        "dropped; sending: from its last token to the end of the answer"
    )
    level: int | None = Field(description="its queue when this began, 0 is Q1")
    start_s: float = Field(description="seconds since its arrival")
    end_s: float = Field(description="seconds since its arrival")
    iterations: int | None = Field(description="of prefill and decode")
    displaced_by: list[str] | None = Field(
        description="ids of requests that ran meanwhile, in their order, the first 8; of waiting states, and "
        "empty for keys that may not see the requests of others"
    )
    reason: str | None = Field(description="why it came into this state, where that is not plain")
    merged: int = Field(
        description="it stands for so many segments, whose order among their neighbours is lost: more than "
        "512 of a choice are not kept"
    )


class TimelineMark(BaseModel):
    at_s: float = Field(description="seconds since its arrival")
    level: int = Field(description="its queue afterwards, 0 is Q1")


class ChoiceTimeline(BaseModel):
    request_id: str = Field(description="the client's own name for its request, or one made up here")
    trace_id: str | None = Field(description="of the OpenTelemetry trace, if the request is in one")
    choice: int = Field(description="number of the answer, from 0")
    job: str = Field(description="16 hexadecimal digits, as in traces")
    pipeline: int = Field(description="that ran it last")
    arrived_s: float = Field(description="when it arrived, seconds since 1970")
    total_s: float = Field(description="from its arrival to the end of the answer, or so far")
    first_token_s: float | None = Field(description="seconds since its arrival")
    finish_reason: str | None = Field(
        description="stop, length, tool_calls, abort, error or refused; null: runs"
    )
    prompt_tokens: int = Field(description="of its prompt")
    output_tokens: int = Field(description="generated so far")
    segments: list[TimelineSegment] = Field(description="contiguous, from 0 to total_s")
    demotions: list[TimelineMark] = Field(description="to lower queues, the last 128")
    promotions: list[TimelineMark] = Field(description="to higher queues, the last 128")


class RequestTimeline(BaseModel):
    request_id: str = Field(description="the client's own name for it, or one made up here")
    trace_id: str | None = Field(description="of the OpenTelemetry trace, if the request is in one")
    total_s: float = Field(description="of the first choice")
    segments: list[TimelineSegment] = Field(description="of the first choice")
    choices: list[ChoiceTimeline] = Field(description="the first 32 answers, one job each")


class TimelineSample(BaseModel):
    """One iteration, or a few where there are too many: sums of the swaps, of the rest the largest."""

    at_s: float = Field(description="when it began, seconds since 1970")
    pipeline: int = Field(description="that ran it")
    batch: int = Field(description="jobs in it; 0: only copies began")
    tokens: int = Field(description="that it computes")
    waiting: int = Field(description="unfinished jobs that are in no iteration")
    device_used: int = Field(description="KV blocks on the device")
    device_total: int = Field(description="KV blocks that the device has room for")
    host_used: int = Field(description="KV blocks in host memory, kept prefixes included")
    host_total: int = Field(description="KV blocks that host memory has room for")
    swap_out_blocks: int = Field(description="whose copies to the host began")
    swap_in_blocks: int = Field(description="whose copies to the device began")
    seconds: float = Field(description="until its result; 0 while that is awaited")
    iterations: int = Field(description="how many these are; of 2 and more there were too many to tell all")


class TimelineLimits(BaseModel):
    requests: int = Field(description="ended requests that are kept (timeline.requests)")
    samples: int = Field(description="iterations that each pipeline keeps (timeline.samples)")
    left_out: int = Field(description="requests of the window that are not in this answer, the oldest")


class TimelineWindow(BaseModel):
    start_s: float = Field(description="seconds since 1970")
    end_s: float = Field(description="seconds since 1970")
    requests: list[ChoiceTimeline] = Field(description="those that were there in the window, by arrival")
    samples: list[TimelineSample] = Field(description="iterations of all pipelines, by time")
    limits: TimelineLimits = Field(description="what bounds this answer")


class ChromeTrace(BaseModel):
    """For ui.perfetto.dev and chrome://tracing."""

    traceEvents: list[dict[str, Any]] = Field(
        description="a track for each answer with a slice for each segment, instants for its first token and "
        "its demotions, and counters of the pipelines"
    )
    displayTimeUnit: Literal["ms"] = Field(default="ms", description="always ms")


def choice_of(timeline: Timeline, arrived: float, *, others: bool) -> ChoiceTimeline:
    """arrived: seconds since 1970; others: requests of others may be named"""
    construct = ChoiceTimeline.model_construct  # it is ours and of the right types; there may be thousands
    return construct(
        request_id=timeline.request_id,
        trace_id=timeline.trace.split("-")[1] if timeline.trace else None,
        choice=timeline.choice,
        job=f"{timeline.job_id:016x}",
        pipeline=timeline.pipeline,
        arrived_s=arrived,
        total_s=timeline.total,
        first_token_s=timeline.first_token,
        finish_reason=timeline.finish,
        prompt_tokens=timeline.prompt_tokens,
        output_tokens=timeline.output_tokens,
        segments=[_segment(segment, others) for segment in timeline.segments],
        demotions=_marks(timeline.demotions),
        promotions=_marks(timeline.promotions),
    )


def request_of(choices: Sequence[ChoiceTimeline]) -> RequestTimeline:
    """choices: at least one, by number"""
    first = choices[0]
    return RequestTimeline.model_construct(
        request_id=first.request_id,
        trace_id=first.trace_id,
        total_s=first.total_s,
        segments=first.segments,
        choices=list(choices),
    )


def sample_of(sample: IterationSample, pipeline: int, now: float) -> TimelineSample:
    """now: when it was told of, seconds since 1970"""
    return TimelineSample.model_construct(
        at_s=now - sample.ago,
        pipeline=pipeline,
        batch=sample.batch,
        tokens=sample.tokens,
        waiting=sample.waiting,
        device_used=sample.device_used,
        device_total=sample.device_total,
        host_used=sample.host_used,
        host_total=sample.host_total,
        swap_out_blocks=sample.swap_out,
        swap_in_blocks=sample.swap_in,
        seconds=sample.seconds,
        iterations=sample.iterations,
    )


def _segment(segment: Segment, others: bool) -> TimelineSegment:
    names = segment.displaced_by if others else []
    return TimelineSegment.model_construct(
        state=segment.state,
        level=segment.level,
        start_s=segment.start,
        end_s=segment.end,
        iterations=segment.iterations or None,
        displaced_by=names if segment.state in WAITING else None,
        reason=segment.reason,
        merged=segment.merged,
    )


def _marks(changes: Iterable[LevelChange]) -> list[TimelineMark]:
    return [TimelineMark.model_construct(at_s=change.at, level=change.level) for change in changes]
