"""Timelines on the bus: from the schedulers to this gateway, from each gateway to all."""

import asyncio
import logging

from services.gateway.timelines import KeptTimelines
from shared.bus import Bus, Subscription
from shared.messages import JobsEnded, RequestEnded

log = logging.getLogger("skipjoin.gateway")

_DEPTH = 4096
"""Requests that have ended and are not told of yet; more are kept here only."""


class TimelineExchange:
    """Construct, `await open()`, then run the three loops as those of the service."""

    def __init__(self, bus: Bus, kept: KeptTimelines) -> None:
        self._bus = bus
        self._kept = kept
        self._leaving: asyncio.Queue[RequestEnded] = asyncio.Queue(_DEPTH)
        self._jobs: Subscription | None = None
        self._requests: Subscription | None = None
        kept.on_ended = self._ended

    async def open(self) -> None:
        """Subscribe; from here on nothing is missed."""
        subjects = self._bus.subjects
        self._jobs = await self._bus.subscribe(subjects.jobs_ended(self._bus.instance), depth=_DEPTH)
        self._requests = await self._bus.subscribe(subjects.requests_ended, depth=_DEPTH)

    async def receive_jobs(self) -> None:
        assert self._jobs is not None, "open() first"
        async for delivery in self._jobs:
            if isinstance(delivery.body, JobsEnded):
                self._kept.jobs_ended(delivery.body.timelines)

    async def receive_requests(self) -> None:
        assert self._requests is not None, "open() first"
        async for delivery in self._requests:
            if isinstance(delivery.body, RequestEnded) and delivery.source != self._bus.instance:
                self._kept.elsewhere_ended(delivery.body)

    async def tell_others(self) -> None:
        while True:
            await self._bus.publish(self._bus.subjects.requests_ended, await self._leaving.get())

    def _ended(self, ended: RequestEnded) -> None:
        try:
            self._leaving.put_nowait(ended)
        except asyncio.QueueFull:
            log.warning("other gateways are not told of request %s: too many are waiting", ended.request_id)
