"""Sending an answer: streamed as server-sent events or whole, and noticing that the client went away."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from services.gateway.answers import Answer, Usage
from services.gateway.refusals import ClientGone, describe
from services.gateway.streaming import Generation
from services.gateway.telemetry import RequestRecord

log = logging.getLogger("skipjoin.gateway")


class EventStream(Response):
    """An answer in server-sent events.

    The job is submitted inside the response, and headers go out when it was accepted: a refusal still becomes
    an ordinary error answer, and no job can be left behind between the handler and its response.
    """

    media_type = "text/event-stream"

    def __init__(self, generation: Generation, answer: Answer, record: RequestRecord) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._generation = generation
        self._answer = answer
        self._record = record

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._stream(receive, send)
        except ClientGone as gone:
            failure = describe(gone)
            self._record.failed(failure.outcome, failure.message)

    async def _stream(self, receive: Receive, send: Send) -> None:
        async with until_disconnect(receive), aclosing(self._generation.pieces()) as pieces:
            await anext(pieces)
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            try:
                async for piece in pieces:
                    self._record.note_tokens(piece.tokens)
                    event = self._answer.chunk(piece.text, piece.finish)
                    if piece.finish is not None:
                        self._record.answered(self._generation, piece.finish)
                        event += self._answer.last_events(usage_of(self._generation))
                    if event:
                        await send({"type": "http.response.body", "body": event, "more_body": True})
            except Exception as error:
                # The status line is gone: the client learns of the failure from an event, and never sees a
                # finish reason that did not happen.
                failure = describe(error)
                self._record.failed(failure.outcome, failure.message)
                if failure.unexpected:
                    log.exception("a stream failed")
                event = b"data: " + failure.body() + b"\n\n"
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def whole_answer(
    generation: Generation, answer: Answer, record: RequestRecord, receive: Receive
) -> Response:
    """Generate to the end. Raises like `Engine.generate`, and ClientGone."""
    texts: list[str] = []
    finish = None
    async with until_disconnect(receive), aclosing(generation.pieces()) as pieces:
        async for piece in pieces:
            record.note_tokens(piece.tokens)
            texts.append(piece.text)
            finish = piece.finish
    assert finish is not None  # pieces() ends with one, or raises
    record.answered(generation, finish)
    body = answer.whole("".join(texts), finish, usage_of(generation))
    return Response(body, media_type="application/json")


def usage_of(generation: Generation) -> Usage:
    prompt, completion = generation.prompt_tokens, generation.completion_tokens
    return Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)


@asynccontextmanager
async def until_disconnect(receive: Receive) -> AsyncGenerator[None]:
    """Cancel the block when the client goes away, and raise ClientGone after it was left.

    The request's body must have been read. Works like asyncio.timeout: one task waits beside the block, so
    that a token costs nothing more.
    """
    task = asyncio.current_task()
    assert task is not None
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if gone and task.uncancel() == 0:
            raise ClientGone from None
        raise
    finally:
        watcher.cancel()
