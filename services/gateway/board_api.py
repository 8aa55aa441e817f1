"""`/v1/board`: what all pipelines do now, as it changes."""

from contextlib import aclosing
from typing import Annotated

from fastapi import FastAPI, Query
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from services.gateway.board import Board
from services.gateway.board_snapshot import BoardSnapshot
from services.gateway.interruption import Interruption
from services.gateway.openapi import ERRORS, Answers
from services.gateway.refusals import ClientGone, describe
from services.gateway.requests_api import admin_only
from services.gateway.telemetry import record_of

_ANSWERS: Answers = {
    200: {
        "description": "one snapshot, or a stream of them",
        "content": {
            "text/event-stream": {
                "itemSchema": {
                    "type": "object",
                    "required": ["data"],
                    "properties": {
                        "data": {
                            "type": "string",
                            "description": "a BoardSnapshot as JSON; `[DONE]` in the last event",
                        }
                    },
                }
            }
        },
    },
    **ERRORS,
}
_Once = Annotated[bool, Query(description="one snapshot as JSON instead of a stream")]


def install(app: FastAPI, board: Board, *, exposed: bool) -> None:
    """exposed: others than this machine reach the gateway without a key"""

    @app.get("/v1/board", response_model=BoardSnapshot, responses=_ANSWERS, tags=["requests"])
    async def watch(request: Request, once: _Once = False) -> Response:
        """Queues with their jobs, KV blocks, utilisation, rates and latencies of all pipelines: server-sent
        events, twice a second until the client leaves or the gateway shuts down.
        """
        admin_only(request, "the board", exposed=exposed)
        if once:
            return Response(await board.once(), media_type="application/json")
        return BoardStream(board)


class BoardStream(Response):
    """Snapshots as server-sent events."""

    media_type = "text/event-stream"

    def __init__(self, board: Board) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._board = board

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async with Interruption().guard(receive), aclosing(self._board.watch()) as snapshots:
                async for snapshot in snapshots:
                    event = b"data: " + snapshot + b"\n\n"
                    await send({"type": "http.response.body", "body": event, "more_body": True})
        except ClientGone as gone:
            record = record_of(scope)
            if record is not None:
                failure = describe(gone)
                record.failed(failure.outcome, failure.cause)
            return
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
