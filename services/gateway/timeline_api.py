"""`/v1/requests/{id}/timeline` and `/v1/timeline`: what requests were in when, as JSON or for Perfetto."""

import asyncio
import time
from typing import Annotated, Literal

from fastapi import FastAPI, Query
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from services.gateway.engine import Engine
from services.gateway.open_requests import OpenRequest, OpenRequests
from services.gateway.openapi import ERRORS, Answers
from services.gateway.perfetto import chrome_trace
from services.gateway.requests_api import (
    MOST_REPORTED,
    admin_only,
    gatewayless,
    may_see,
    not_found,
    sees_all,
    visible_elsewhere,
)
from services.gateway.timeline_reports import (
    ChromeTrace,
    RequestTimeline,
    TimelineLimits,
    TimelineWindow,
    choice_of,
    request_of,
    sample_of,
)
from services.gateway.timelines import KeptRequest, KeptTimelines
from shared.config import Config
from shared.messages import Timeline

MOST_SEGMENTS = 20_000
"""In one answer about a window of time: some megabytes."""

_PATIENCE_S = 1.0
"""For the scheduler's word of a request that has just ended."""

Format = Annotated[
    Literal["json", "perfetto"], Query(description="perfetto: a Chrome trace for ui.perfetto.dev")
]
Seconds = Annotated[float, Query(gt=0, le=3600, description="how long ago the window begins")]


def _answers(whole: type[BaseModel]) -> Answers:
    return {
        200: {"model": whole | ChromeTrace, "description": "the timeline, in the format asked for"}
    } | ERRORS


def install(
    app: FastAPI, requests: OpenRequests, engine: Engine, kept: KeptTimelines, config: Config
) -> None:
    """To be installed before `/v1/requests/{id}`, which takes ids with slashes."""

    @app.get("/v1/requests/{name:path}/timeline", responses=_answers(RequestTimeline), tags=["requests"])
    async def timeline(request: Request, name: str, format: Format = "json") -> Response:
        """What a request was in from its arrival to its end, by choice; of the unfinished one, so far."""
        others = sees_all(request)
        timelines, arrived = await _find(request, name)
        choices = [
            choice_of(each, arrived, others=others)
            for each in sorted(timelines, key=lambda each: each.choice)[:MOST_REPORTED]
        ]
        return _response(chrome_trace(choices) if format == "perfetto" else request_of(choices))

    @app.get("/v1/timeline", responses=_answers(TimelineWindow), tags=["requests"])
    async def window(request: Request, seconds: Seconds = 60.0, format: Format = "json") -> Response:
        """All requests of the last seconds, unfinished ones too, and what the iterations were like."""
        admin_only(request, "the timeline of all requests", exposed=config.gateway.exposed)
        parts = await engine.window(seconds)
        now = time.time()

        def build() -> Response:
            told = _in_window(
                kept.since(now - seconds), [each for part in parts for each in part.timelines], now
            )
            left_out = len(told) + sum(part.left_out for part in parts)
            told = _newest(told)
            choices = [choice_of(each, arrived, others=True) for each, arrived in told]
            samples = [sample_of(sample, part.pipeline, now) for part in parts for sample in part.samples]
            samples.sort(key=lambda sample: sample.at_s)
            if format == "perfetto":
                return _response(chrome_trace(choices, samples))
            limits = TimelineLimits(
                requests=kept.limit, samples=config.timeline.samples, left_out=left_out - len(told)
            )
            return _response(
                TimelineWindow.model_construct(
                    start_s=now - seconds, end_s=now, requests=choices, samples=samples, limits=limits
                )
            )

        return await asyncio.to_thread(build)  # thousands of segments: other answers must not wait for it

    async def _find(request: Request, name: str) -> tuple[list[Timeline], float]:
        """By choice, and when they arrived, seconds since 1970. Raises InvalidRequest."""
        here = [each for each in requests.find(name) if may_see(request, each.key)]
        if here and not here[0].ended:
            return await _unfinished(here[0])
        ended = [each for each in kept.find(name) if may_see(request, each.ended.key)]
        if here and not ended:
            found = await kept.wait_for(here[0].answer_id, _PATIENCE_S)
            if found is None:
                raise not_found(name)
            ended = [found]
        if ended:
            return ended[0].ended.timelines, ended[0].arrived
        there = await visible_elsewhere(request, engine, name)
        told = await engine.timelines(there[0].job_ids if there else [gatewayless(request, name)])
        if not told:
            raise not_found(name)
        return told, time.time() - told[0].total

    async def _unfinished(opened: OpenRequest) -> tuple[list[Timeline], float]:
        told = await engine.timelines(opened.job_ids)
        return kept.assemble(opened, told), opened.arrived


def _in_window(
    ended: list[KeptRequest], unfinished: list[Timeline], now: float
) -> list[tuple[Timeline, float]]:
    """With the time of their arrival, seconds since 1970, oldest first."""
    told = {each.job_id: (each, kept.arrived) for kept in ended for each in kept.ended.timelines}
    for each in unfinished:
        told.setdefault(each.job_id, (each, now - each.total))
    return sorted(told.values(), key=lambda each: each[1])


def _newest(told: list[tuple[Timeline, float]]) -> list[tuple[Timeline, float]]:
    """As many as fit into an answer."""
    segments = 0
    for count, (each, _) in enumerate(reversed(told)):
        segments += len(each.segments)
        if segments > MOST_SEGMENTS:
            return told[len(told) - count :]
    return told


def _response(body: BaseModel) -> Response:
    return Response(body.model_dump_json().encode(), media_type="application/json")
