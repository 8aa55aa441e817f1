"""Which way an activation takes: by its size, by what the stages share, or as it is configured."""

from dataclasses import dataclass
from enum import StrEnum

from shared.config import StageConfig

ENVELOPE_BYTES = 16 * 1024
"""Room in a message for what is not activations: the plan. One that needs more is noticed when it is sent."""


class Way(StrEnum):
    INLINE = "inline"
    """inside the step's message"""
    SHM = "shm"
    """a segment of shared memory"""
    CHUNKED = "chunked"
    """pieces over NATS, on a subject of their own"""
    DISTRIBUTED = "distributed"
    """torch.distributed, straight to the next stage"""


@dataclass(frozen=True, slots=True)
class Hop:
    """What this stage and the next have in common.

    shares_memory: the next stage has read a segment of this one; has_group: a process group stands
    max_payload: of the NATS server, bytes
    """

    shares_memory: bool
    has_group: bool
    max_payload: int


def ways(config: StageConfig, size: int, hop: Hop) -> list[Way]:
    """The ways for `size` bytes of activations, best first; a later one is for when those before are full.

    What would be a single piece goes inline: `python -m loadgen.transport_table` shows where which is faster.
    """
    if config.transport != "auto":
        return [Way(config.transport)]
    between_hosts = Way.DISTRIBUTED if config.wants_process_group and hop.has_group else Way.CHUNKED
    if hop.shares_memory:
        found, most = [Way.SHM, between_hosts], config.inline_bytes
    elif between_hosts is Way.DISTRIBUTED:
        found, most = [between_hosts], config.inline_bytes_between_hosts
    else:
        found, most = [between_hosts], max(config.inline_bytes_between_hosts, config.chunk_bytes)
    small = size <= most and size + ENVELOPE_BYTES <= hop.max_payload
    return [Way.INLINE, *found] if small else found
