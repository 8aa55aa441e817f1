"""Sending an answer: streamed as server-sent events or whole, and noticing that the client went away."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from services.gateway.answers import Answer, PromptTokensDetails, Usage
from services.gateway.choices import Choices
from services.gateway.refusals import ClientGone, describe
from services.gateway.streaming import Piece
from services.gateway.telemetry import RequestRecord

log = logging.getLogger("skipjoin.gateway")


class EventStream(Response):
    """An answer in server-sent events.

    The jobs are submitted inside the response, and headers go out when all were accepted: a refusal still
    becomes an ordinary error answer, and no job can be left behind between the handler and its response.
    """

    media_type = "text/event-stream"

    def __init__(self, choices: Choices, answer: Answer, record: RequestRecord) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._choices = choices
        self._answer = answer
        self._record = record

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._stream(receive, send)
        except ClientGone as gone:
            failure = describe(gone)
            self._record.failed(failure.outcome, failure.message)

    async def _stream(self, receive: Receive, send: Send) -> None:
        async with until_disconnect(receive), aclosing(self._choices.pieces()) as pieces:
            await anext(pieces)
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            unfinished = len(self._choices)
            try:
                async for index, piece in pieces:
                    self._record.note_tokens(piece.tokens, index)
                    event = self._answer.chunk(index, piece)
                    unfinished -= piece.finish is not None
                    if not unfinished:
                        self._record.answered(self._choices)
                        event += self._answer.last_events(usage_of(self._choices))
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


async def whole_answer(choices: Choices, answer: Answer, record: RequestRecord, receive: Receive) -> Response:
    """Generate to the end. Raises like `Engine.generate`, and ClientGone."""
    parts: list[list[Piece]] = [[] for _ in range(len(choices))]
    async with until_disconnect(receive), aclosing(choices.pieces()) as pieces:
        async for index, piece in pieces:
            record.note_tokens(piece.tokens, index)
            parts[index].append(piece)
    record.answered(choices)
    body = answer.whole([joined(each) for each in parts], usage_of(choices))
    return Response(body, media_type="application/json")


def joined(pieces: list[Piece]) -> Piece:
    return Piece(
        "".join(piece.text for piece in pieces),
        sum(piece.tokens for piece in pieces),
        pieces[-1].finish,
        tuple(scored for piece in pieces for scored in piece.logprobs),
    )


def usage_of(choices: Choices) -> Usage:
    prompt, completion = choices.prompt_tokens, choices.completion_tokens
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=choices.cached_tokens),
    )


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
