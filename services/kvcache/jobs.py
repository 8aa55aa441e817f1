"""What the KV-cache manager knows of one job.

              grant                      swap out                  all stages done
    (none) ─────────────> DEVICE ─────────────────> MOVING_OUT ─────────────────────> HOST
       ^                   │  ^                                                        │
       │      drop         │  │        all stages done                   swap in        │
       └───────────────────┘  └───────────────────── MOVING_IN <───────────────────────┘

A job that begins with tokens whose KV is kept (prefixes.py) comes to the device by MOVING_IN, too; one whose
KV is to be kept leaves by MOVING_OUT after its end.

A job's blocks go back only when it is neither in flight (a step uses them) nor moving (a copy does).

Its host blocks stay after a swap in, as long as nobody else needs them: tokens that are written never change,
so the next swap out moves only what was written since.
"""

import struct
from enum import Enum

from services.kvcache.prefixes import CachedBlock
from shared.ids import BlockId, JobId, StepId, TransferId


class Residence(Enum):
    DEVICE = "device"
    MOVING_OUT = "moving_out"
    HOST = "host"
    MOVING_IN = "moving_in"


class JobKV:
    """tokens: KV entries that completed steps have written, or that were found
    found: those of them that the scheduler has not been told of: it learns of them with the first grant
    prefix: cached blocks that its copy under way reads or, after its end, writes
    borrowed: cached blocks that it began with and that still are the first of its `host` blocks: they stay
        where they are while it counts on them, and are nobody's to write
    device, table: its device blocks in order, and the same as little-endian int32, as stages get it
    planned: `tokens` once the step in flight is complete
    step: the step it is in flight in, if any; transfer: its swap under way, if any
    enst: when it runs next, as last heard; place: the same, when it was sorted in on the host; seconds
    saved: KV entries of which the host blocks hold a valid copy
    begun: it was brought in and has not run since, or its prompt is computed in part
    released: its job ended; the blocks go back when nothing touches them any more
    """

    __slots__ = (
        "begun", "borrowed", "device", "enst", "found", "host", "job_id", "place", "planned", "prefix",
        "released", "residence", "saved", "step", "table", "tokens", "trace", "transfer",
    )  # fmt: skip

    def __init__(self, job_id: JobId, trace: str | None) -> None:
        self.job_id = job_id
        self.trace = trace
        self.residence = Residence.DEVICE
        self.device: list[BlockId] = []
        self.table = b""
        self.host: list[BlockId] = []
        self.tokens = 0
        self.found = 0
        self.prefix: list[CachedBlock] = []
        self.borrowed: list[CachedBlock] = []
        self.saved = 0
        self.begun = False
        self.planned = 0
        self.step: StepId | None = None
        self.transfer: TransferId | None = None
        self.enst = 0.0
        self.place = 0.0
        self.released = False

    @property
    def moving(self) -> bool:
        return self.transfer is not None

    @property
    def own_host(self) -> list[BlockId]:
        """Its host blocks without those that are borrowed."""
        return self.host[len(self.borrowed) :]

    @property
    def idle(self) -> bool:
        """Neither a step nor a copy touches its blocks."""
        return self.step is None and self.transfer is None

    @property
    def may_leave(self) -> bool:
        """It rests on the device and owes no progress: a job that has begun gets on before it is sent out."""
        return self.residence is Residence.DEVICE and self.idle and not self.begun

    def stale(self, held: int) -> bool:
        """Whether the scheduler counts on `held` tokens while others are here: its step failed, so that it
        starts over.
        """
        return self.tokens - self.found != held

    def extend(self, blocks: list[BlockId]) -> None:
        """More device blocks behind those it has."""
        self.device += blocks
        self.table += struct.pack(f"<{len(blocks)}i", *blocks)

    def take_device(self) -> list[BlockId]:
        """All its device blocks, which it has no longer."""
        blocks, self.device, self.table = self.device, [], b""
        return blocks
