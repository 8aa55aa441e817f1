"""Between the scheduler and the KV-cache manager: which jobs run, what moves."""

from enum import StrEnum

from shared.ids import BlockId, Epoch, JobId, StepId, TransferId
from shared.messages.base import Message, Part

HASH_BYTES = 16
"""Of a block's chain hash: it stands for the block's tokens and all before them, and the cache salt."""


class Candidate(Part, frozen=True):
    """A job that may run in the next iteration, in priority order.

    new_tokens: tokens it would compute; context: KV tokens it holds afterwards
    enst: estimated next scheduled time, seconds from now (0: as soon as possible)
    prefix: chain hashes of its full blocks, the first time that it is a candidate in this epoch
    """

    job_id: JobId
    new_tokens: int
    context: int
    enst: float = 0.0
    trace: str | None = None
    prefix: bytes = b""


class Holder(Part, frozen=True):
    """A job that holds KV but is no candidate now."""

    job_id: JobId
    enst: float


class Ended(Part, frozen=True):
    """A job that ended by itself, so that others may begin with the same tokens.

    prefix: chain hashes of the full blocks that it has written
    """

    job_id: JobId
    prefix: bytes


class PrefixesKept(Message, frozen=True):
    """From a scheduler to all gateways: jobs that begin like these would find their KV in this pipeline.

    prefixes: of each, the chain hashes of its full blocks
    """

    pipeline: int
    prefixes: list[bytes]


class PlanRequest(Message, frozen=True):
    """What the scheduler wants to run next. Answered with a PlanReply.

    holders: those that hold KV and run last, largest ENST first; empty when no victims can be needed
    completed: steps whose result has arrived since the last request (their jobs are no longer in flight)
    released: jobs that ended; their blocks go back as soon as nothing reads or writes them
    chunked: a prompt may be computed in parts, whatever the token limit leaves
    ended: those of `released` whose blocks are worth keeping
    """

    step_id: StepId
    candidates: list[Candidate]
    holders: list[Holder] = []
    completed: list[StepId] = []
    released: list[JobId] = []
    batch_limit: int = 0
    token_limit: int = 0
    chunked: bool = False
    ended: list[Ended] = []


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
    """The job may run.

    table: its block ids in order, little-endian int32
    tokens: how many it computes; fewer than it wanted when its prompt is computed in parts, or begins with
        tokens whose KV was there
    cached: how many those are, before the ones that it computes; only in the first grant of a job without KV
    """

    job_id: JobId
    table: bytes
    tokens: int = 0
    cached: int = 0


class Occupancy(Part, frozen=True):
    """Blocks of both tiers: those not free, and all."""

    device_used: int = 0
    device_total: int = 0
    host_used: int = 0
    host_total: int = 0


class PlanReply(Message, frozen=True):
    """Which candidates run, and what moves.

    waits: transfers that must be complete before this step computes (its own swap-ins)
    dropped: jobs whose KV was given up; they must be recomputed from their tokens
    free_blocks: device blocks left, without what is kept for arrivals
    arriving: candidates that are being brought in; they stay candidates until they have run
    occupancy: with this plan carried out
    """

    step_id: StepId
    granted: list[Grant] = []
    directives: list[Directive] = []
    waits: list[TransferId] = []
    dropped: list[JobId] = []
    free_blocks: int = 0
    arriving: list[JobId] = []
    occupancy: Occupancy = Occupancy()

    @property
    def calls_for_another(self) -> bool:
        """Whether a further plan may do more now: another batch, or what was dropped computed anew. Else
        a result, a finished transfer or an arrival has to come first.
        """
        return bool(self.granted or self.dropped)


class KVChanged(Message, frozen=True):
    """Transfers finished: blocked candidates may fit now. moved: which they are"""

    free_blocks: int
    moved: list[TransferId] = []


class StaleEpoch(Message, frozen=True):
    """The answer to a request of an older epoch: the sender was superseded and must stop."""

    newest: Epoch


class KVLost(Message, frozen=True):
    """The answer to a plan request when the manager no longer knows which block is whose.

    Asks for a new epoch, in which every job is recomputed.
    """

    reason: str
