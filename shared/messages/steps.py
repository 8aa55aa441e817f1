"""One iteration: from the scheduler through the stages and back, with its transfers and timings."""

from shared.costmodel import BatchLoad
from shared.ids import JobId, StepId, TransferId
from shared.messages.base import Message, Part
from shared.messages.kv import Direction, Directive
from shared.messages.requests import Grammar, Sampling, TokenLogprobs


class TokenHistory(Part, frozen=True):
    """Tokens of a job that bear on its next draw.

    Sent anew with every step, and only for jobs that need it. The last stage could count the tokens it is
    given instead, but then a draw would depend on what a process remembers: a restarted stage, a job that
    was recomputed, and a prefix whose KV was there already would each need a rule of its own. The scheduler
    owns the tokens, so nothing can disagree. The price is 4 bytes per output token and step.

    output: the output so far, little-endian int32; empty unless presence or frequency is penalised
    seen: ids that occur in prompt or output (repeats allowed); empty unless repetition is penalised
    barred: ids that may not be drawn now
    """

    output: bytes = b""
    seen: bytes = b""
    barred: list[int] = []


class DefineGrammar(Message, frozen=True):
    """To the last stage, ahead of the first step in an epoch that names the grammar: a schema may be large,
    and a step is sent for every token.
    """

    grammar_id: int
    grammar: Grammar


class GrammarState(Part, frozen=True):
    """Where in its grammar a job is.

    output: the output so far, little-endian int32; sent anew with every step, for the reason of TokenHistory
    barred: ids that are not drawn now unless the grammar allows no others (min_tokens)
    """

    grammar_id: int
    output: bytes = b""
    barred: list[int] = []


class StepJob(Part, frozen=True):
    """One job's share of an iteration.

    tokens: ids to compute, the first at position `start` (0-based in prompt + output)
    table: its block table, little-endian int32
    sampling: None while its prompt is not complete in this step: nothing is drawn then
    trace: W3C traceparent under which the stages report a span for this job in this step
    history: None if the next token depends on no earlier ones but through the model
    grammar: None if any token may be drawn; its bars are there and not in the history
    """

    job_id: JobId
    tokens: list[int]
    start: int
    table: bytes
    sampling: Sampling | None = None
    trace: str | None = None
    history: TokenHistory | None = None
    grammar: GrammarState | None = None


class StepPlan(Message, frozen=True):
    """One iteration for all stages. Without jobs it only carries directives, from stage to stage at once: no
    computation and no activations hold them up.

    forgotten: grammars that neither this nor a later step names
    """

    step_id: StepId
    jobs: list[StepJob] = []
    directives: list[Directive] = []
    waits: list[TransferId] = []
    forgotten: list[int] = []

    def load(self) -> BatchLoad:
        return BatchLoad.of((len(job.tokens), job.start + len(job.tokens)) for job in self.jobs)


class TensorData(Part, frozen=True):
    """A dense tensor, or how it comes: exactly one of

    data: inline
    segment: name of a shared-memory segment of this host
    chunks: so many Chunk messages of the same step
    tag: a torch.distributed message with this tag
    """

    dtype: str
    shape: list[int]
    data: bytes = b""
    segment: str | None = None
    chunks: int = 0
    tag: int | None = None


class StepInput(Message, frozen=True):
    """A plan with jobs on its way through stages 1..N-1 with the activations of the stage before. Its
    directives went ahead in a StepPlan without jobs.

    hidden: [tokens, hidden_size]; absent only inside of stage 0
    seconds, waited: per stage so far, the compute time and the time blocked on swap-ins
    """

    plan: StepPlan
    hidden: TensorData | None = None
    seconds: list[float] = []
    waited: list[float] = []


class StepResult(Message, frozen=True):
    """The last stage's answer: one token per job whose `sampling` was set, in the plan's order.

    error: set when a stage failed in this step; no job of it has a token then
    logprobs: one for each of `tokens`, None for jobs that ask for none; empty if no job does
    refused: one for each of `tokens`: why the job's grammar cannot be followed any further (the token means
        nothing then), None if it can; empty if all can
    """

    step_id: StepId
    tokens: list[int]
    seconds: list[float] = []
    waited: list[float] = []
    error: str | None = None
    logprobs: list[TokenLogprobs | None] = []
    refused: list[str | None] = []


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
