"""`/v1/requests`: what is unfinished, why a request waits, and an end to one by its id.

A request lives on one gateway, which tells the others of it, and its jobs in a scheduler, which every gateway
can ask. The id of an answer holds a job's, so that it is understood although its gateway is gone.
"""

import asyncio
import re

from fastapi import FastAPI
from starlette.requests import Request

from services.gateway.access import access_of
from services.gateway.engine import Engine
from services.gateway.open_requests import OpenRequests
from services.gateway.openapi import ERRORS
from services.gateway.reports import (
    Cancelled,
    RequestEntry,
    RequestList,
    RequestReport,
    entry_of,
    job_report,
)
from shared.errors import InvalidRequest
from shared.ids import JobId
from shared.messages import AskRequests, Requests, RequestView

_ANSWER_ID = re.compile("(?:chatcmpl-|cmpl-|resp_)([0-9a-f]{16})")
MOST_REPORTED = 32
"""Choices of one request that are asked about."""


def install(app: FastAPI, requests: OpenRequests, engine: Engine, *, exposed: bool) -> None:
    """exposed: others than this machine reach the gateway without a key"""

    @app.get("/v1/requests", response_model=RequestList, responses=ERRORS, tags=["requests"])
    async def unfinished(request: Request) -> RequestList:
        """The unfinished requests of all gateways, oldest first."""
        admin_only(request, "the list of requests", exposed=exposed)
        parts = [requests.tell(AskRequests()), *await engine.requests_elsewhere(None)]
        data = [entry_of(each) for part in parts for each in part.requests]
        left_out = sum(part.left_out for part in parts)
        return RequestList(data=sorted(data, key=lambda entry: entry.created or 0), left_out=left_out)

    @app.get("/v1/requests/{name:path}", response_model=RequestReport, responses=ERRORS, tags=["requests"])
    async def explain(request: Request, name: str) -> RequestReport:
        """Where a request is and why it waits, by choice."""
        found = visible(request, requests.tell(AskRequests(name)))
        found = found or await visible_elsewhere(request, engine, name)
        if found:
            return await _report(engine, entry_of(found[0]), found[0].job_ids, sees_all(request))
        job_id = gatewayless(request, name)
        known = await engine.explain(job_id)
        if not known.found:
            raise not_found(name)
        entry = RequestEntry(id=name, answer_id=name, ended=known.state == "ended")
        return await _report(engine, entry, [job_id], True)

    @app.delete("/v1/requests/{name:path}", response_model=Cancelled, responses=ERRORS, tags=["requests"])
    async def cancel(request: Request, name: str) -> Cancelled:
        """End a request: its client gets an error, its blocks are freed."""
        here = [each for each in requests.find(name) if may_see(request, each.key)]
        running = [each for each in here if not each.ended]
        for each in running:
            each.cancel()
        there = await visible_elsewhere(request, engine, name)
        jobs = [job_id for each in there if not each.ended for job_id in each.job_ids]
        if not (here or there):
            jobs.append(await _unfinished_job(gatewayless(request, name), name))
        elif not (running or jobs):
            raise _ended(name)
        for job_id in jobs:
            await engine.abort(job_id)
        return Cancelled(id=name)

    async def _unfinished_job(job_id: JobId, name: str) -> JobId:
        known = await engine.explain(job_id)
        if not known.found:
            raise not_found(name)
        if known.state == "ended":
            raise _ended(name)
        return job_id


def visible(request: Request, told: Requests) -> list[RequestView]:
    """Those that the client may see."""
    return [each for each in told.requests if may_see(request, each.key)]


async def visible_elsewhere(request: Request, engine: Engine, name: str) -> list[RequestView]:
    """Those of other gateways with this request or answer id that the client may see: the unfinished first,
    then by age, the newest first.
    """
    told = await engine.requests_elsewhere(name)
    found = [each for part in told for each in visible(request, part)]
    return sorted(found, key=lambda each: (each.ended, -each.created))


async def _report(engine: Engine, entry: RequestEntry, job_ids: list[JobId], others: bool) -> RequestReport:
    known = await asyncio.gather(*(engine.explain(job_id) for job_id in job_ids[:MOST_REPORTED]))
    own = set(job_ids)
    choices = [job_report(index, each, own, others=others) for index, each in enumerate(known)]
    return RequestReport(**entry.model_dump(), choices=choices)


def sees_all(request: Request) -> bool:
    access = access_of(request.scope)
    return access is None or access.key.admin


def may_see(request: Request, key: str | None) -> bool:
    """Whether the client may see a request that came with the API key of this name."""
    access = access_of(request.scope)
    return access is None or access.key.admin or key == access.key.name


def admin_only(request: Request, what: str, *, exposed: bool) -> None:
    """Raises InvalidRequest unless the client has an admin key, or reaches this machine's own loopback."""
    if exposed or not sees_all(request):
        need = (
            "no API keys are configured and others reach this address" if exposed else "it needs an admin key"
        )
        raise InvalidRequest(f"{what} is not for everybody: {need}", code="forbidden", status=403)


def gatewayless(request: Request, name: str) -> JobId:
    """The job of a request that no gateway has (any more). Whose it was nobody knows, so that keys which may
    see but their own are told that it is not here.
    """
    named = _ANSWER_ID.fullmatch(name)
    if named is None or not sees_all(request):
        raise not_found(name)
    return JobId(int(named[1], 16))


def not_found(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"id: no request {name[:150]!r} is known; it may have ended long ago, or its gateway is gone",
        param="id",
        code="not_found",
        status=404,
    )


def _ended(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"id: request {name[:150]!r} has ended already", param="id", code="request_ended", status=410
    )
