"""What the gateway knows of each pipeline: its scheduler, and whether that can serve.

                 Hello ready          silent, loading, or shutting down
    unknown ────────────────> serves ─────────────────────────────────> does not ──> its jobs go to others
                                 ^────────────── Hello ready ──────────────┘ └─ silent for long ─> forgotten

Epochs are a pipeline's own: they are never compared with those of another one.
"""

import math
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from shared.costmodel import GUESS, CostModel
from shared.ids import Epoch
from shared.messages import HELLO_STALE_S, LEAVING, Hello, Limits

GONE_S = 60.0
"""What has not come back by then is not waited for."""


class Server(NamedTuple):
    """A scheduler. It may begin new epochs; its jobs stay with it until another instance takes over."""

    epoch: Epoch
    instance: str
    pipeline: int = 0

    def superseded_by(self, current: "Server") -> bool:
        return (
            self.pipeline == current.pipeline
            and self.instance != current.instance
            and self.epoch <= current.epoch
        )


class PipelineState(NamedTuple):
    """failure: why it cannot serve; empty if it can
    jobs: unfinished ones that its scheduler knew of last
    """

    pipeline: int
    failure: str
    jobs: int


class News(Enum):
    """What a Hello has told."""

    NOTHING = "nothing"
    NEW_EPOCH = "new epoch"
    """the same scheduler, but no KV is left of before"""
    REPLACED = "replaced"
    """another scheduler, or the first one"""
    STALE = "stale"
    """from a scheduler that has been replaced"""


class _Pipeline(NamedTuple):
    """heard: seconds on the gateway's clock"""

    server: Server
    hello: Hello
    heard: float


class Pipelines:
    """Pure; every `now` is in seconds on the gateway's clock.

    configured: pipelines 0 … configured - 1 belong to the application; others come and go
    """

    def __init__(self, configured: int, now: float) -> None:
        self._configured = configured
        self._known: dict[int, _Pipeline] = {}
        self._last_heard = now

    def hear(self, hello: Hello, server: Server, now: float) -> News:
        if self.superseded(server):
            return News.STALE
        before = self._known.get(server.pipeline)
        self._known[server.pipeline] = _Pipeline(server, hello, now)
        self._last_heard = now
        if before is None or before.server.instance != server.instance:
            return News.REPLACED
        return News.NEW_EPOCH if server.epoch != before.server.epoch else News.NOTHING

    def superseded(self, server: Server) -> bool:
        """From an older scheduler than the one we know. An older epoch of the same one is no reason to drop
        what it said: it keeps its jobs and their tokens when it begins a new epoch.
        """
        known = self.server(server.pipeline)
        return known is not None and known.instance != server.instance and server.epoch < known.epoch

    def server(self, pipeline: int) -> Server | None:
        known = self._known.get(pipeline)
        return known.server if known else None

    def failure(self, pipeline: int, now: float) -> str:
        """Why this one cannot serve; empty if it can."""
        known = self._known.get(pipeline)
        if known is None:
            return "the scheduler has not started yet"
        if now - known.heard > HELLO_STALE_S:
            return f"no sign of life from the scheduler for more than {HELLO_STALE_S:.0f} s"
        if not known.hello.ready or known.hello.limits is None:
            return known.hello.detail or "the scheduler is loading"
        return ""

    def serving(self, now: float) -> list[int]:
        return [pipeline for pipeline in self.members if not self.failure(pipeline, now)]

    def not_ready(self, now: float) -> str:
        """Why no pipeline can serve; empty if one can."""
        failures = {pipeline: self.failure(pipeline, now) for pipeline in self.members}
        if not all(failures.values()):
            return ""
        if len(failures) == 1:
            return next(iter(failures.values()))
        return "; ".join(f"pipeline {pipeline}: {failure}" for pipeline, failure in failures.items())

    @property
    def members(self) -> list[int]:
        """Those that belong to the application, heard of or not."""
        return sorted({*range(self._configured), *self._known})

    def states(self, now: float) -> list[PipelineState]:
        return [
            PipelineState(pipeline, self.failure(pipeline, now), self._jobs_in(pipeline))
            for pipeline in self.members
        ]

    def _jobs_in(self, pipeline: int) -> int:
        known = self._known.get(pipeline)
        return sum(each.jobs for each in known.hello.outstanding.values()) if known else 0

    @property
    def cost(self) -> CostModel:
        """What iterations cost: that of the first pipeline that knows it."""
        return next((known.hello.cost for known in self._known.values() if known.hello.cost), GUESS)

    @property
    def limits(self) -> Limits | None:
        """What every pipeline can take, that has said so."""
        return _tightest(
            known.hello.limits for known in self._known.values() if known.hello.limits is not None
        )

    def silent_for(self, now: float) -> float:
        """Seconds since any of them was heard."""
        return now - self._last_heard

    def take_gone(self, now: float) -> list[int]:
        """Pipelines that were added and are no more: they took leave, or have been silent for long."""
        gone = [
            pipeline
            for pipeline, known in self._known.items()
            if pipeline >= self._configured
            and now - known.heard > (HELLO_STALE_S if known.hello.detail == LEAVING else GONE_S)
        ]
        for pipeline in gone:
            del self._known[pipeline]
        return gone


def _tightest(stated: Iterable[Limits]) -> Limits | None:
    length = capacity = math.inf
    for limits in stated:
        length, capacity = min(length, limits.max_model_len), min(capacity, limits.capacity)
    return None if math.isinf(length) else Limits(int(length), int(capacity))
