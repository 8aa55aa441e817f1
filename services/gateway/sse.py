"""Sending an answer: streamed as server-sent events or whole."""

import logging
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from services.gateway.answers import Answer, PromptTokensDetails, Usage
from services.gateway.choices import Choices
from services.gateway.interruption import Interruption
from services.gateway.readers import ReaderStuck
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

    def __init__(
        self, choices: Choices, answer: Answer, record: RequestRecord, interruption: Interruption
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._choices = choices
        self._answer = answer
        self._record = record
        self._interruption = interruption

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def noting(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._stream(receive, noting)
        except ClientGone as gone:
            failure = describe(gone)
            self._record.failed(failure.outcome, failure.cause)
        except ReaderStuck:
            raise
        except Exception as error:
            if not started:
                raise
            # The status line is gone: the client learns of the failure from an event, and never sees a
            # finish reason that did not happen. The jobs have ended, so that it may take its time.
            failure = describe(error)
            self._record.failed(failure.outcome, failure.cause)
            if failure.unexpected:
                log.exception("a stream failed")
            event = self._answer.failed(failure)
            await send({"type": "http.response.body", "body": event, "more_body": False})

    async def _stream(self, receive: Receive, send: Send) -> None:
        async with self._interruption.guard(receive), aclosing(self._choices.pieces()) as pieces:
            await anext(pieces)
            self._record.accepted()
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            first = self._answer.first_events()
            if first:
                await send({"type": "http.response.body", "body": first, "more_body": True})
            unfinished = len(self._choices)
            async for index, piece in pieces:
                self._record.note_tokens(piece.tokens, index)
                event = self._answer.chunk(index, piece)
                unfinished -= piece.finish is not None
                if not unfinished:
                    self._record.answered(self._choices)
                    event += self._answer.last_events(usage_of(self._choices))
                if event:
                    await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def whole_answer(
    choices: Choices, answer: Answer, record: RequestRecord, interruption: Interruption, receive: Receive
) -> Response:
    """Generate to the end. Raises like `Engine.generate`, and what interrupts it."""
    parts: list[list[Piece]] = [[] for _ in range(len(choices))]
    async with interruption.guard(receive), aclosing(choices.pieces()) as pieces:
        await anext(pieces)
        record.accepted()
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
        tuple(delta for piece in pieces for delta in piece.calls),
        [token for piece in pieces for token in piece.token_ids],
    )


def usage_of(choices: Choices) -> Usage:
    prompt, completion = choices.prompt_tokens, choices.completion_tokens
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=choices.cached_tokens),
    )
