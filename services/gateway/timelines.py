"""Timelines of the last requests, of all gateways: what the schedulers said, and what came before and after.

    scheduler ──JobsEnded──> the job's gateway ──RequestEnded──> all gateways
                             (adds what came before and after)

Pure. A request is told of when it has ended and all of its jobs' timelines are here, in whichever order.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from services.gateway.open_requests import OpenRequest
from shared.ids import JobId
from shared.messages import JobState, RequestEnded, Segment, Timeline

JOBS_PER_REQUEST = 4
"""Timelines that wait for the end of their request, by those that are kept."""


class KeptRequest(NamedTuple):
    """arrived: seconds since 1970, on this host's clock"""

    ended: RequestEnded
    arrived: float


class KeptTimelines:
    """kept: ended requests that are remembered, the latest"""

    def __init__(self, kept: int, clock: Callable[[], float] = time.time) -> None:
        """clock: seconds since 1970"""
        self.limit = kept
        self.on_ended: Callable[[RequestEnded], None] = lambda ended: None
        """Called with each request of this gateway, once its story is complete."""
        self._clock = clock
        self._requests: OrderedDict[str, KeptRequest] = OrderedDict()  # by answer id
        self._jobs: OrderedDict[JobId, Timeline] = OrderedDict()  # their requests are not complete
        self._waiting: OrderedDict[str, OpenRequest] = OrderedDict()  # ended, some job's timeline is missing
        self._request_of: dict[JobId, str] = {}
        self._news = asyncio.Event()

    # ------------------------------------------------------------ what arrives

    def jobs_ended(self, timelines: Iterable[Timeline]) -> None:
        """Their scheduler is done with these jobs of this gateway."""
        for timeline in timelines:
            self._jobs[timeline.job_id] = timeline
            if len(self._jobs) > JOBS_PER_REQUEST * self.limit:
                self._jobs.popitem(last=False)
            answer_id = self._request_of.get(timeline.job_id)
            if answer_id is not None:
                self._complete(self._waiting[answer_id])

    def request_ended(self, request: OpenRequest) -> None:
        """A request of this gateway is over."""
        self._waiting[request.answer_id] = request
        self._request_of.update((job_id, request.answer_id) for job_id in request.job_ids)
        if len(self._waiting) > self.limit:
            self._give_up(next(iter(self._waiting.values())))
        self._complete(request)

    def elsewhere_ended(self, ended: RequestEnded) -> None:
        """Another gateway tells of a request."""
        self._keep(KeptRequest(ended, self._clock() - ended.total))

    def _complete(self, request: OpenRequest) -> None:
        if any(job_id not in self._jobs for job_id in request.job_ids):
            return
        self._give_up(request)
        timelines = [
            _with_end(self._jobs.pop(job_id), request.total_s, finish)
            for job_id, finish in zip(request.job_ids, request.finishes, strict=True)
        ]
        ended = RequestEnded(request.request_id, request.answer_id, request.key, request.total_s, timelines)
        self._keep(KeptRequest(ended, request.arrived))
        self.on_ended(ended)

    def _give_up(self, request: OpenRequest) -> None:
        self._waiting.pop(request.answer_id, None)
        for job_id in request.job_ids:
            self._request_of.pop(job_id, None)

    def _keep(self, request: KeptRequest) -> None:
        self._requests[request.ended.answer_id] = request
        if len(self._requests) > self.limit:
            self._requests.popitem(last=False)
        news, self._news = self._news, asyncio.Event()
        news.set()

    # ------------------------------------------------------------ what can be told

    def find(self, name: str) -> list[KeptRequest]:
        """Those with this request id or answer id, the newest first."""
        return [
            request
            for request in reversed(self._requests.values())
            if name in (request.ended.request_id, request.ended.answer_id)
        ]

    async def wait_for(self, answer_id: str, seconds: float) -> KeptRequest | None:
        """A request that has just ended: its scheduler's word may still be on its way."""
        try:
            async with asyncio.timeout(seconds):
                while answer_id not in self._requests:
                    await self._news.wait()
        except TimeoutError:
            return None
        return self._requests[answer_id]

    def since(self, start: float) -> list[KeptRequest]:
        """Those that ended at `start` (seconds since 1970) or later, oldest first."""
        return [each for each in self._requests.values() if each.arrived + each.ended.total >= start]

    def assemble(self, request: OpenRequest, told: Iterable[Timeline]) -> list[Timeline]:
        """An unfinished request, by choice, of what its schedulers say of its jobs."""
        known = {timeline.job_id: timeline for timeline in told}
        total = request.total_s
        timelines: list[Timeline] = []
        for choice, job_id in enumerate(request.job_ids):
            ended = self._jobs.get(job_id)
            if ended is not None:
                timelines.append(_with_end(ended, total, None))
            elif job_id in known:
                timelines.append(known[job_id])
            else:
                here = [Segment(JobState.GATEWAY, 0.0, total)]
                timelines.append(Timeline(job_id, request.request_id, choice, request.trace, total, here))
        return timelines


def _with_end(timeline: Timeline, total: float, finish: str | None) -> Timeline:
    """With the time from its last token to the end of the answer, `total` seconds after the arrival.

    finish: how the answer ends, which the scheduler need not know: a stop string is found here
    """
    finish = finish or timeline.finish
    if total <= timeline.total:  # its client left before the scheduler was told
        return msgspec.structs.replace(timeline, finish=finish)
    sending = Segment(JobState.SENDING, timeline.total, total)
    return msgspec.structs.replace(
        timeline, total=total, segments=[*timeline.segments, sending], finish=finish
    )
