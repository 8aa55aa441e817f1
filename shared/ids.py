"""Typed identifiers. All are plain integers on the wire."""

import secrets
from typing import NewType

JobId = NewType("JobId", int)
"""One generation (one choice of one request); random 63-bit, made by the gateway."""

BlockId = NewType("BlockId", int)
"""Index of a KV block inside one tier, the same on every stage and rank."""

StepId = NewType("StepId", int)
"""One iteration; counts up from 1 inside a scheduler epoch."""

TransferId = NewType("TransferId", int)
"""One swap of one job between tiers; counts up from 1 inside a scheduler epoch."""

Epoch = NewType("Epoch", int)
"""Fencing number: microseconds since 1970 when it was taken, always larger than every one seen before."""


def new_job_id() -> JobId:
    return JobId(secrets.randbits(63))


def new_instance_id() -> str:
    """Name of one process on the bus; a restarted replica gets a new one."""
    return secrets.token_hex(6)
