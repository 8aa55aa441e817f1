"""Every message on the bus. MessagePack, tagged, array-like; tensors are raw bytes with dtype and shape.

Field order is the wire format: append new fields, with a default, at the end.
"""

from typing import Annotated

from msgspec import Meta

from shared.costmodel import CostModel
from shared.ids import Epoch
from shared.messages.activations import (
    Chunk,
    Meet,
    Met,
    Receipt,
    StepPassed,
)
from shared.messages.base import Message, Part
from shared.messages.board import (
    LOOK_EVERY_S,
    JobView,
    KVView,
    Latency,
    Look,
    QueueView,
    SchedulerView,
    TierView,
)
from shared.messages.kv import (
    HASH_BYTES,
    Candidate,
    Direction,
    Directive,
    Ended,
    Grant,
    Holder,
    KVChanged,
    KVLost,
    Move,
    Occupancy,
    PlanReply,
    PlanRequest,
    PrefixesKept,
    StaleEpoch,
)
from shared.messages.life import (
    DRAINED,
    HELLO_STALE_S,
    LEAVING,
    Drain,
    Hello,
    Limits,
    Outstanding,
    Progress,
)
from shared.messages.metrics import (
    CollectMetrics,
    MetricFamily,
    Metrics,
    Sample,
)
from shared.messages.open_requests import (
    AskRequests,
    Requests,
    RequestView,
)
from shared.messages.requests import (
    Abort,
    Accepted,
    Explain,
    Explanation,
    FinishReason,
    Grammar,
    JobEvent,
    JobEventKind,
    JobTokens,
    Refused,
    Sampling,
    Submit,
    TokenBatch,
    TokenLogprobs,
)
from shared.messages.steps import (
    DefineGrammar,
    GrammarState,
    StepInput,
    StepJob,
    StepPlan,
    StepResult,
    StepTiming,
    TensorData,
    TokenHistory,
    TransferDone,
    Transferred,
)
from shared.messages.timelines import (
    RUNNING,
    WAITING,
    AskTimelines,
    IterationSample,
    JobsEnded,
    JobState,
    LevelChange,
    RequestEnded,
    Segment,
    Timeline,
    Timelines,
)

__all__ = [
    "DRAINED",
    "HASH_BYTES",
    "HELLO_STALE_S",
    "LEAVING",
    "LOOK_EVERY_S",
    "RUNNING",
    "WAITING",
    "Abort",
    "Accepted",
    "AskRequests",
    "AskTimelines",
    "Body",
    "Candidate",
    "Chunk",
    "CollectMetrics",
    "DefineGrammar",
    "Direction",
    "Directive",
    "Drain",
    "Ended",
    "Envelope",
    "Explain",
    "Explanation",
    "FinishReason",
    "Grammar",
    "GrammarState",
    "Grant",
    "Hello",
    "Holder",
    "IterationSample",
    "JobEvent",
    "JobEventKind",
    "JobState",
    "JobTokens",
    "JobView",
    "JobsEnded",
    "KVChanged",
    "KVLost",
    "KVView",
    "Latency",
    "LevelChange",
    "Limits",
    "Look",
    "Meet",
    "Message",
    "Met",
    "MetricFamily",
    "Metrics",
    "Move",
    "Occupancy",
    "Outstanding",
    "Part",
    "PlanReply",
    "PlanRequest",
    "PrefixesKept",
    "Progress",
    "QueueView",
    "Receipt",
    "Refused",
    "RequestEnded",
    "RequestView",
    "Requests",
    "Sample",
    "Sampling",
    "SchedulerView",
    "Segment",
    "StaleEpoch",
    "StepInput",
    "StepJob",
    "StepPassed",
    "StepPlan",
    "StepResult",
    "StepTiming",
    "Submit",
    "TensorData",
    "TierView",
    "Timeline",
    "Timelines",
    "TokenBatch",
    "TokenHistory",
    "TokenLogprobs",
    "TransferDone",
    "Transferred",
]

Body = (
    Submit | Accepted | Refused | Abort | TokenBatch | Explain | Explanation
    | PlanRequest | PlanReply | KVChanged | KVLost | StaleEpoch | PrefixesKept
    | StepPlan | StepInput | StepResult | StepTiming | TransferDone
    | Chunk | Receipt | StepPassed | Meet | Met | DefineGrammar
    | CostModel | Hello | Drain | Progress | CollectMetrics | Metrics
    | Look | SchedulerView | KVView
    | JobsEnded | RequestEnded | AskTimelines | Timelines | AskRequests | Requests
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
