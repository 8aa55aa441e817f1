"""Between neighbouring stages, beside the steps themselves: large activations in pieces, and who has what."""

from typing import Annotated

from msgspec import Meta

from shared.ids import StepId
from shared.messages.base import Message


class Chunk(Message, frozen=True):
    """Piece number `index` (0-based) of `count` of a step's activations."""

    step_id: StepId
    index: Annotated[int, Meta(ge=0)]
    count: Annotated[int, Meta(ge=1)]
    data: bytes


class Receipt(Message, frozen=True):
    """To the stage before: what it may count as arrived.

    chunks: pieces of this step that are here
    taken: the activations of this step, and of all before it, take no room on the way any more
    """

    step_id: StepId
    chunks: int = 0
    taken: bool = False


class StepPassed(Message, frozen=True):
    """Stage 0 has computed its share of this step and is free for the next one."""

    step_id: StepId


class Meet(Message, frozen=True):
    """A stage asks the next one what they share. Answered with Met.

    segment: a shared-memory segment to be read; "" if the sender has no shared memory
    store: host:port of the sender's torch.distributed store, "" if it wants no process group
    """

    segment: str = ""
    store: str = ""


class Met(Message, frozen=True):
    """content: what the segment holds, b"" if it is not visible here; joined: the process group stands"""

    content: bytes = b""
    joined: bool = False
