"""What a pipeline looks like now: asked for by gateways whose clients watch it, and only then."""

from shared.ids import JobId
from shared.messages.base import Message, Part

LOOK_EVERY_S = 0.2
"""Gateways that look more often, or several at once, get the same view."""


class Look(Message, frozen=True):
    """Ask a scheduler or a KV-cache manager what it looks like. Answered with SchedulerView or KVView."""


class JobView(Part, frozen=True):
    """state: waiting (never ran), running or preempted
    output, prompt: tokens
    waits: seconds since its last token here or, without one, since it arrived
    """

    job_id: JobId
    state: str
    output: int
    prompt: int
    priority: int
    waits: float


class QueueView(Part, frozen=True):
    """level: 0 is Q1; quantum: seconds, 0 where the policy has none
    waiting, running, preempted: all jobs in it; jobs: the first of them, in the order in which they run
    """

    level: int
    quantum: float
    waiting: int
    running: int
    preempted: int
    jobs: list[JobView]


class Latency(Part, frozen=True):
    """Of the last minute, seconds; 0 when nothing was measured. count: how often it was"""

    count: int = 0
    p50: float = 0.0
    p95: float = 0.0


class SchedulerView(Message, frozen=True):
    """Counts and times run since the scheduler started: rates are differences between two views.

    at: the scheduler's clock, seconds
    batches: jobs in each batch in flight
    tokens, ended: tokens drawn, jobs ended in whatever way
    busy: by stage, seconds of computing or waiting for a copy
    first_token: from a job's arrival at the gateway; between_tokens: of one job
    """

    at: float
    policy: str
    queues: list[QueueView]
    batches: list[int]
    max_batch_size: int
    iterations: int
    tokens: int
    ended: int
    busy: list[float]
    first_token: Latency = Latency()
    between_tokens: Latency = Latency()


class TierView(Part, frozen=True):
    """Blocks of one tier. cached: copies that give way to whatever needs the room"""

    name: str
    total: int
    held: int
    moving: int
    cached: int


class KVView(Message, frozen=True):
    tiers: list[TierView]
