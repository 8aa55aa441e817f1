"""Between rank 0 of a stage and its other ranks, on their links; never on the bus.

    rank 0                                      rank 1..N-1
                              <── Joined ──     its process is there
                              <── Loading ──    its part of the weights, then
                              <── Ready ──
    when a plan arrives       ── StartTransfers ──>
                              <── Moved ──      from its copy threads, whenever one is done
    when it computes          ── StepPlan ──>
    a new epoch begins        ── Reset ──>
                              <── ResetDone ──  nothing of before is running or reported any more
                              <── Failed ──     its last word

A link that ends means that the process at its other end is gone.
"""

from typing import Any

import msgspec

from shared.config import Config
from shared.messages import Directive, StepPlan, Transferred
from shared.messages.base import Message, Part


class RankSpec(Part, frozen=True):
    """What a process needs to become a rank.

    host, port: of rank 0's listener; store_port: of its rendezvous for collectives
    token: proves that it was started by rank 0
    """

    config: Config
    stage: int
    rank: int
    host: str
    port: int
    store_port: int
    token: str


class Joined(Message, frozen=True):
    rank: int
    token: str


class Loading(Message, frozen=True):
    text: str
    fraction: float | None


class Ready(Message, frozen=True):
    hardware: str


class StartTransfers(Message, frozen=True):
    directives: list[Directive]


class Moved(Message, frozen=True):
    done: Transferred


class Reset(Message, frozen=True):
    pass


class ResetDone(Message, frozen=True):
    pass


class Failed(Message, frozen=True):
    reason: str


RankMessage = Joined | Loading | Ready | StartTransfers | Moved | StepPlan | Reset | ResetDone | Failed

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[RankMessage] = msgspec.msgpack.Decoder(RankMessage)  # pyright: ignore


def encode(message: RankMessage) -> bytes:
    return _encoder.encode(message)


def decode(data: bytes) -> RankMessage:
    """Raises msgspec.DecodeError, also for a message of another kind."""
    return _decoder.decode(data)


def encode_spec(spec: RankSpec) -> bytes:
    return _encoder.encode(spec)


def decode_spec(data: bytes) -> RankSpec:
    spec: Any = msgspec.msgpack.decode(data, type=RankSpec)
    return spec
