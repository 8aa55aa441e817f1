"""What jobs were in, from their arrival to their end, and what the iterations were like.

Clocks of hosts are never compared: times are seconds since the job's arrival, or before the message was sent.
"""

from enum import StrEnum

from shared.ids import JobId
from shared.messages.base import Message, Part


class JobState(StrEnum):
    GATEWAY = "gateway"
    """not submitted yet: template, tokenising"""
    QUEUED = "queued"
    """it has no KV: it never ran, or its KV was dropped"""
    PREFILL = "prefill"
    DECODE = "decode"
    PREEMPTED = "preempted"
    """its KV is on the device and others run"""
    SWAPPING_OUT = "swapping_out"
    ON_HOST = "on_host"
    SWAPPING_IN = "swapping_in"
    RECOMPUTE = "recompute"
    """prefill again, as its KV was dropped"""
    SENDING = "sending"
    """the model is done with it, its request is not"""


RUNNING = frozenset({JobState.PREFILL, JobState.DECODE, JobState.RECOMPUTE})
"""In these a job is in an iteration, or between two that follow each other."""

WAITING = frozenset(
    {
        JobState.QUEUED,
        JobState.PREEMPTED,
        JobState.SWAPPING_OUT,
        JobState.ON_HOST,
        JobState.SWAPPING_IN,
    }
)
"""In these others run in its place."""


class Segment(Part, frozen=True):
    """start, end: seconds since the job's arrival
    level: its queue when it began, 0 is Q1; None outside of the scheduler
    iterations: begun in it, of prefill and decode
    displaced_by: requests that ran meanwhile, in their order, the first few
    reason: why it came into this state, where that is not plain
    merged: it stands for so many, whose order among their neighbours is lost
    """

    state: JobState
    start: float
    end: float
    level: int | None = None
    iterations: int = 0
    displaced_by: list[str] = []
    reason: str | None = None
    merged: int = 1

    @property
    def seconds(self) -> float:
        return self.end - self.start


class LevelChange(Part, frozen=True):
    """at: seconds since the job's arrival; level: its queue afterwards"""

    at: float
    level: int


class Timeline(Part, frozen=True):
    """Of one job: contiguous segments from its arrival at the gateway on; the last ends at `total` seconds.

    choice: which answer of its request it is
    trace: W3C traceparent of its request, if that is recorded
    first_token: seconds since its arrival; None before it, and if another scheduler sent it
    finish: why it ended; None: it has not
    demotions, promotions: the latest
    """

    job_id: JobId
    request_id: str
    choice: int
    trace: str | None
    total: float
    segments: list[Segment]
    first_token: float | None = None
    finish: str | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    demotions: list[LevelChange] = []
    promotions: list[LevelChange] = []
    pipeline: int = 0


class IterationSample(Part, frozen=True):
    """One iteration, or several neighbouring ones: then sums of the swaps, and of the rest the largest.

    ago: seconds before the message that it began
    batch, tokens: jobs in it and tokens that they compute; both 0: only copies began
    waiting: unfinished jobs that are in no iteration
    device_used, device_total, host_used, host_total: blocks
    swap_out, swap_in: blocks whose copies began
    seconds: until its result; 0 while it is awaited
    iterations: how many these are
    """

    ago: float
    batch: int
    tokens: int
    waiting: int
    device_used: int
    device_total: int
    host_used: int
    host_total: int
    swap_out: int = 0
    swap_in: int = 0
    seconds: float = 0.0
    iterations: int = 1


class JobsEnded(Message, frozen=True):
    """From a scheduler to the gateway that submitted these jobs, when they end."""

    timelines: list[Timeline]


class RequestEnded(Message, frozen=True):
    """From a gateway to all: a request's whole story, so that each can tell it.

    answer_id: names it for all gateways; key: name of the API key that it came with
    total: seconds from its arrival to the end of its answer
    timelines: by choice
    """

    request_id: str
    answer_id: str
    key: str | None
    total: float
    timelines: list[Timeline]


class AskTimelines(Message, frozen=True):
    """To a scheduler. Answered with Timelines.

    job_ids: unfinished jobs that are asked for; None: all, as many as are taken in one message
    seconds: samples of the iterations that began so long ago or less
    """

    job_ids: list[JobId] | None = None
    seconds: float = 0.0


class Timelines(Message, frozen=True):
    """timelines: those found; left_out: so many more are unfinished; pipeline: who says this"""

    timelines: list[Timeline]
    samples: list[IterationSample] = []
    left_out: int = 0
    pipeline: int = 0
