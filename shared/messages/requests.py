"""Between whoever wants tokens (gateway, profiler) and the scheduler."""

from enum import StrEnum

from shared.ids import JobId
from shared.messages.base import Message, Part


class Sampling(Part, frozen=True):
    """How the next token is drawn. temperature 0 is greedy; top_k 0 and top_p 1 switch the filters off.

    The draw depends on (seed, position of the token) alone, never on who shares the batch.

    min_p: least probability, as a share of the likeliest token's; 0 is off
    presence_penalty, frequency_penalty: taken off the logit of a token that is in the output, once and per
    occurrence
    repetition_penalty: divides (a negative logit: multiplies) that of a token in prompt or output; 1 is off
    logit_bias: added, by token id
    logprobs: how many of the likeliest tokens are reported beside the drawn one; None: no log-probabilities
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    logprobs: int | None = None

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


class Grammar(Part, frozen=True):
    """What the text of an answer must match.

    source: in the Lark dialect of llguidance
    ends: ids that end an answer: drawn only where it is complete, and then nothing else may be
    field: the request field that it comes from, for errors
    """

    source: str
    ends: list[int]
    field: str = ""


class TokenLogprobs(Part, frozen=True):
    """Of one drawn token, under the model's own distribution: before temperature, penalties and filters.

    top_ids, top_logprobs: the likeliest tokens, most likely first, as many as were asked for
    """

    logprob: float
    top_ids: list[int] = []
    top_logprobs: list[float] = []


class FinishReason(StrEnum):
    STOP = "stop"
    """a stop token was drawn"""
    LENGTH = "length"
    """max_tokens or the room in context or KV pool was used up"""
    ABORT = "abort"
    """the client went away or the gateway found a stop string"""
    ERROR = "error"
    """the system failed; never shown to clients as a normal end"""
    REFUSED = "refused"
    """the answer cannot go on as its grammar asks, which is the request's fault"""


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
    min_tokens, barred_token_ids: these ids are not drawn while it has fewer output tokens
    cache_salt: KV of ended jobs is reused by those with the same salt only; "" is a salt like any other, None
        takes no part in it
    grammar: what its text must match; None: anything
    request_id: the client's name for its request; choice: which answer of it this is, from 0
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
    min_tokens: int = 0
    barred_token_ids: list[int] = []
    cache_salt: str | None = None
    grammar: Grammar | None = None
    request_id: str = ""
    choice: int = 0


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
    """New tokens of one job: output tokens number start, start + 1, ... (0-based).

    logprobs: one for each of `tokens` if its sampling asks for them, else empty
    cached: tokens of its prompt that its last prefill did not compute, as their KV was there
    """

    job_id: JobId
    start: int
    tokens: list[int]
    finish: FinishReason | None = None
    error: str | None = None
    logprobs: list[TokenLogprobs] = []
    cached: int = 0


class TokenBatch(Message, frozen=True):
    """All new tokens of one iteration for one receiver. pipeline: whose they are"""

    items: list[JobTokens]
    pipeline: int = 0


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
    """forgotten: earlier events that are not kept any more
    state: waiting (never ran), running, preempted or ended; level: its queue, 0 is Q1
    enst: estimated next scheduled time, seconds from now; None for a job that has ended
    counts: events by kind, those forgotten too
    seconds: time spent by state
    """

    job_id: JobId
    found: bool
    events: list[JobEvent] = []
    forgotten: int = 0
    state: str = ""
    level: int = 0
    enst: float | None = None
    counts: dict[str, int] = {}
    seconds: dict[str, float] = {}
