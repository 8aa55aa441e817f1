"""The live board: one look at every pipeline per tick, however many watch, and none when nobody does.

Whoever is first in a tick looks, for all others too, and there is no task that could go on alone. A watcher
that is slow misses snapshots, not news: each is complete.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator
from typing import NamedTuple

from services.gateway.board_snapshot import BoardSnapshot, board_of
from services.gateway.engine import Engine
from services.gateway.open_requests import OpenRequests
from services.gateway.pipeline_view import PipelineView
from shared.clock import Clock, MonotonicClock

TICK_S = 0.5
RATES_OVER_S = 3.0
"""Rates are means over so long: the differences of two ticks jump with each iteration."""


class _Taken(NamedTuple):
    """at: seconds on the gateway's clock; encoded: the snapshot as JSON; complete: its rates are known"""

    at: float
    encoded: bytes
    complete: bool


class Board:
    def __init__(self, engine: Engine, requests: OpenRequests, clock: Clock | None = None) -> None:
        self._engine = engine
        self._requests = requests
        self._clock = clock or MonotonicClock()
        self._looking = asyncio.Lock()
        self._latest: _Taken | None = None
        self._before: dict[int, deque[PipelineView]] = {}

    async def watch(self) -> AsyncGenerator[bytes]:
        """Snapshots in JSON, one a tick, until the gateway shuts down."""
        seen: _Taken | None = None
        while not self._engine.draining:
            seen = await self._after(seen)
            yield seen.encoded

    async def once(self) -> bytes:
        """One snapshot in JSON. Rates need two looks, so that it takes a tick if nobody else watches."""
        taken = await self._after(None)
        return taken.encoded if taken.complete else (await self._after(taken)).encoded

    async def _after(self, seen: _Taken | None) -> _Taken:
        """One that is newer than `seen`, and not older than a tick."""
        if seen is not None:
            await asyncio.sleep(max(0.0, seen.at + TICK_S - self._clock.now()))
        async with self._looking:
            latest = self._latest
            if latest is None or latest is seen or self._clock.now() - latest.at >= TICK_S:
                latest = self._latest = await self._take()
            return latest

    async def _take(self) -> _Taken:
        at = self._clock.now()
        views = await self._engine.look()
        boards = [board_of(view, self._earlier(view), self._requests.name_of) for view in views]
        here = {view.pipeline for view in views}
        self._before = {pipeline: kept for pipeline, kept in self._before.items() if pipeline in here}
        encoded = BoardSnapshot(at=time.time(), pipelines=boards).model_dump_json().encode()
        return _Taken(at, encoded, all(each.complete for each in boards))

    def _earlier(self, view: PipelineView) -> PipelineView | None:
        """The oldest view that rates may be counted from; `view` is kept for later ones."""
        kept = self._before.setdefault(view.pipeline, deque())
        while kept and not (view.follows(kept[0]) and view.seconds_since(kept[0]) <= RATES_OVER_S):
            kept.popleft()
        earliest = kept[0] if kept else None
        kept.append(view)
        return earliest
