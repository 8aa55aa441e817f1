"""`/v1/requests`: what is unfinished, why a request waits, and an end to one by its id.

A request lives on one gateway, its jobs in the scheduler, which every gateway can ask. So the answer's id,
which holds a job's, is understood by all replicas; the client's own id only by the one that has the request.
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

_ANSWER_ID = re.compile("(?:chatcmpl-|cmpl-|resp_)([0-9a-f]{16})")
MOST_REPORTED = 32
"""Choices of one request that are asked about."""


def install(app: FastAPI, requests: OpenRequests, engine: Engine, *, exposed: bool) -> None:
    """exposed: others than this machine reach the gateway without a key"""

    @app.get("/v1/requests", response_model=RequestList, responses=ERRORS, tags=["requests"])
    async def unfinished(request: Request) -> RequestList:
        """The unfinished requests of this gateway, oldest first."""
        admin_only(request, "the list of requests", exposed=exposed)
        return RequestList(data=[entry_of(each) for each in requests.unfinished()])

    @app.get("/v1/requests/{name:path}", response_model=RequestReport, responses=ERRORS, tags=["requests"])
    async def explain(request: Request, name: str) -> RequestReport:
        """Where a request is and why it waits, by choice."""
        found = [each for each in requests.find(name) if may_see(request, each.key)]
        if found:
            return await _report(engine, entry_of(found[0]), found[0].job_ids, sees_all(request))
        job_id = elsewhere(request, name)
        known = await engine.explain(job_id)
        if not known.found:
            raise not_found(name)
        entry = RequestEntry(id=name, answer_id=name, ended=known.state == "ended")
        return await _report(engine, entry, [job_id], True)

    @app.delete("/v1/requests/{name:path}", response_model=Cancelled, responses=ERRORS, tags=["requests"])
    async def cancel(request: Request, name: str) -> Cancelled:
        """End a request: its client gets an error, its blocks are freed."""
        found = [each for each in requests.find(name) if may_see(request, each.key)]
        running = [each for each in found if not each.ended]
        for each in running:
            each.cancel()
        if not running:
            if found:
                raise _ended(name)
            job_id = elsewhere(request, name)
            known = await engine.explain(job_id)
            if not known.found:
                raise not_found(name)
            if known.state == "ended":
                raise _ended(name)
            await engine.abort(job_id)
        return Cancelled(id=name)


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


def elsewhere(request: Request, name: str) -> JobId:
    """The job of a request that this gateway does not have. Whose it is only that gateway knows, so that
    keys which may see but their own are told that it is not here.
    """
    named = _ANSWER_ID.fullmatch(name)
    if named is None or not sees_all(request):
        raise not_found(name)
    return JobId(int(named[1], 16))


def not_found(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"id: no request {name[:150]!r} is known to this gateway; another replica may have it, or it ended "
        "long ago (the id of an answer, chatcmpl-…, cmpl-… or resp_…, is understood by all replicas)",
        param="id",
        code="not_found",
        status=404,
    )


def _ended(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"id: request {name[:150]!r} has ended already", param="id", code="request_ended", status=410
    )
