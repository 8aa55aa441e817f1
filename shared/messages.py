"""Every message on the bus. MessagePack, tagged, array-like; tensors are raw bytes with dtype and shape.

Field order is the wire format: append new fields, with a default, at the end.
"""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from shared.costmodel import BatchLoad, CostModel
from shared.ids import BlockId, Epoch, JobId, StepId, TransferId


class Message(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False, tag=str.lower):
    """Base of everything that is a body of its own on the bus; the tag is the class name in lower case."""


class Part(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """Base of what only travels inside a Message."""


# ---- requests (gateway, profiler -> scheduler)


class Sampling(Part, frozen=True):
    """How the next token is drawn. temperature 0 is greedy; top_k 0 and top_p 1 switch the filters off.

    The draw depends on (seed, position of the token) alone, never on who shares the batch.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


class FinishReason(StrEnum):
    STOP = "stop"
    """a stop token was drawn"""
    LENGTH = "length"
    """max_tokens or the room in context or KV pool was used up"""
    ABORT = "abort"
    """the client went away or the gateway found a stop string"""
    ERROR = "error"
    """the system failed; never shown to clients as a normal end"""


class Submit(Message, frozen=True):
    """A job to run. Answered with Accepted or Refused.

    prompt: token ids, at least one
    output: tokens already generated, when a job is resubmitted after a scheduler was lost
    max_tokens: output tokens in all, those in `output` included
    stop_token_ids: drawing one of them ends the job (it is still reported as a token)
    reply_to: bus instance that receives its TokenBatch messages
    waited: seconds since the request arrived at the gateway
    priority: lower runs first; classes are strict
    tenant: whose fair share it counts against
    predicted_output: its true length, which only the simulator and tests know
    """

    job_id: JobId
    reply_to: str
    prompt: list[int]
    max_tokens: int
    sampling: Sampling
    stop_token_ids: list[int] = []
    output: list[int] = []
    waited: float = 0.0
    priority: int = 0
    tenant: str = ""
    predicted_output: int | None = None


class Accepted(Message, frozen=True):
    job_id: JobId


class Refused(Message, frozen=True):
    """The job was not taken. `param` is the request field at fault, if it was one."""

    job_id: JobId
    reason: str
    param: str | None = None
    retryable: bool = False


class Abort(Message, frozen=True):
    """End these jobs now and return their blocks. Unknown ids are ignored: they may just have finished."""

    job_ids: list[JobId]


class JobTokens(Part, frozen=True):
    """New tokens of one job: output tokens number start, start + 1, ... (0-based)."""

    job_id: JobId
    start: int
    tokens: list[int]
    finish: FinishReason | None = None
    error: str | None = None


class TokenBatch(Message, frozen=True):
    """All new tokens of one iteration for one receiver."""

    items: list[JobTokens]


class JobEventKind(StrEnum):
    JOINED = "joined"
    """arrived in a queue"""
    STARTED = "started"
    """first iteration"""
    PREEMPTED = "preempted"
    """could have gone on; `other` runs instead"""
    RESUMED = "resumed"
    DEMOTED = "demoted"
    """its quantum was used up"""
    PROMOTED = "promoted"
    """it had waited too long, or is now expected to end soon"""
    DROPPED = "dropped"
    """its KV was given up: it is recomputed"""
    ENDED = "ended"


class JobEvent(Part, frozen=True):
    """at: seconds since the job's arrival; level: its queue afterwards, 0 is Q1"""

    kind: JobEventKind
    at: float
    level: int
    other: JobId | None = None


class Explain(Message, frozen=True):
    """Ask the scheduler what happened to a job. Answered with an Explanation."""

    job_id: JobId


class Explanation(Message, frozen=True):
    """forgotten: earlier events that are not kept any more"""

    job_id: JobId
    found: bool
    events: list[JobEvent] = []
    forgotten: int = 0


# ---- KV planning (scheduler <-> kvcache)


class Candidate(Part, frozen=True):
    """A job that may run in the next iteration, in priority order.

    new_tokens: tokens it would compute; context: KV tokens it holds afterwards
    enst: estimated next scheduled time, seconds from now (0: as soon as possible)
    """

    job_id: JobId
    new_tokens: int
    context: int
    enst: float = 0.0
    trace: str | None = None


class Holder(Part, frozen=True):
    """A job that holds KV but is no candidate now."""

    job_id: JobId
    enst: float


class PlanRequest(Message, frozen=True):
    """What the scheduler wants to run next. Answered with a PlanReply.

    holders: those that hold KV and run last, largest ENST first; empty when no victims can be needed
    completed: steps whose result has arrived since the last request (their jobs are no longer in flight)
    released: jobs that ended; their blocks go back as soon as nothing reads or writes them
    """

    step_id: StepId
    candidates: list[Candidate]
    holders: list[Holder] = []
    completed: list[StepId] = []
    released: list[JobId] = []
    batch_limit: int = 0
    token_limit: int = 0


class Move(Part, frozen=True):
    """`count` neighbouring blocks copied from `src` in one tier to `dst` in the other."""

    src: BlockId
    dst: BlockId
    count: int


class Direction(StrEnum):
    OUT = "out"
    """device to host"""
    IN = "in"
    """host to device"""


class Directive(Part, frozen=True):
    """One job's swap. Each stage and rank copies its own layers' share and sends TransferDone."""

    transfer_id: TransferId
    job_id: JobId
    direction: Direction
    moves: list[Move]

    @property
    def blocks(self) -> int:
        return sum(move.count for move in self.moves)


class Grant(Part, frozen=True):
    """The job may run: `table` holds its block ids in order, little-endian int32."""

    job_id: JobId
    table: bytes


class PlanReply(Message, frozen=True):
    """Which candidates run, and what moves.

    waits: transfers that must be complete before this step computes (its own swap-ins)
    dropped: jobs whose KV was given up; they must be recomputed from their tokens
    free_blocks: device blocks left
    """

    step_id: StepId
    granted: list[Grant] = []
    directives: list[Directive] = []
    waits: list[TransferId] = []
    dropped: list[JobId] = []
    free_blocks: int = 0


class KVChanged(Message, frozen=True):
    """A transfer finished: blocked candidates may fit now."""

    free_blocks: int


class StaleEpoch(Message, frozen=True):
    """The answer to a request of an older epoch: the sender was superseded and must stop."""

    newest: Epoch


# ---- one iteration (scheduler -> stages -> scheduler)


class StepJob(Part, frozen=True):
    """One job's share of an iteration.

    tokens: ids to compute, the first at position `start` (0-based in prompt + output)
    table: its block table, little-endian int32
    sampling: None while its prompt is not complete in this step: nothing is drawn then
    trace: W3C traceparent under which the stages report a span for this job in this step
    """

    job_id: JobId
    tokens: list[int]
    start: int
    table: bytes
    sampling: Sampling | None = None
    trace: str | None = None


class StepPlan(Message, frozen=True):
    """One iteration for all stages. Without jobs it only carries directives."""

    step_id: StepId
    jobs: list[StepJob] = []
    directives: list[Directive] = []
    waits: list[TransferId] = []

    def load(self) -> BatchLoad:
        load = BatchLoad()
        for job in self.jobs:
            load = load.plus(len(job.tokens), job.start + len(job.tokens))
        return load


class TensorData(Part, frozen=True):
    """A dense tensor, or where it lies: exactly one of `data` (inline) and `segment` (shared-memory name)."""

    dtype: str
    shape: list[int]
    data: bytes = b""
    segment: str | None = None


class StepInput(Message, frozen=True):
    """A plan on its way through stages 1..N-1 with the activations of the stage before.

    hidden: [tokens, hidden_size], absent for a plan without jobs
    seconds, waited: per stage so far, the compute time and the time blocked on swap-ins
    """

    plan: StepPlan
    hidden: TensorData | None = None
    seconds: list[float] = []
    waited: list[float] = []


class StepResult(Message, frozen=True):
    """The last stage's answer: one token per job whose `sampling` was set, in the plan's order.

    error: set when a stage failed in this step; no job of it has a token then
    """

    step_id: StepId
    tokens: list[int]
    seconds: list[float] = []
    waited: list[float] = []
    error: str | None = None


class StepTiming(Message, frozen=True):
    """For the profiler: the work of one iteration and the compute time of each stage, seconds."""

    step_id: StepId
    load: BatchLoad
    seconds: list[float]


class Transferred(Part, frozen=True):
    """One copy that is complete on one stage and rank; seconds: from its first to its last byte."""

    transfer_id: TransferId
    direction: Direction
    blocks: int
    bytes: int
    seconds: float


class TransferDone(Message, frozen=True):
    """These transfers are complete on this stage and rank."""

    stage: int
    done: list[Transferred]
    rank: int = 0


# ---- life signs


class Limits(Part, frozen=True):
    """What a single request may ask for. capacity: tokens that one job's KV may ever hold."""

    max_model_len: int
    capacity: int

    @property
    def max_tokens_total(self) -> int:
        return min(self.max_model_len, self.capacity)


class Hello(Message, frozen=True):
    """Published every second by every service; a new `instance` means that the service was restarted.

    service: "scheduler", "kvcache", "profiler", "gateway" or "stage0", "stage1", ...
    ready: it can do its work
    limits: set by the scheduler once it is ready
    """

    service: str
    instance: str
    ready: bool
    detail: str = ""
    limits: Limits | None = None


class Progress(Message, frozen=True):
    """Start-up progress for whoever watches. fraction in 0..1, or None where it is unknown."""

    service: str
    text: str
    fraction: float | None = None


# ---- metrics collection


class Sample(Part, frozen=True):
    name: str
    labels: dict[str, str]
    value: float


class MetricFamily(Part, frozen=True):
    name: str
    documentation: str
    kind: str
    samples: list[Sample]


class CollectMetrics(Message, frozen=True):
    """Ask a service for its metrics."""


class Metrics(Message, frozen=True):
    families: list[MetricFamily]


Body = (
    Submit | Accepted | Refused | Abort | TokenBatch | Explain | Explanation
    | PlanRequest | PlanReply | KVChanged | StaleEpoch
    | StepPlan | StepInput | StepResult | StepTiming | TransferDone
    | CostModel | Hello | Progress | CollectMetrics | Metrics
)  # fmt: skip
"""Any message body."""


class Envelope(Part, frozen=True):
    """What is on the wire.

    source: the publisher's instance id
    seq: counts up from 1 per publisher and subject, so that a receiver sees gaps
    epoch: the publisher's view of the scheduler epoch, 0 outside of any
    """

    source: str
    seq: Annotated[int, Meta(ge=0)]
    epoch: Epoch
    body: Body
