"""Clients that do not read: what waits for them stays bounded, and after a while they are cut off.

    tokens ──> job (merged) ──> one event ──> server's buffer (64 KiB) ──> kernel ──> client
                  ^                  │ send waits while the buffer is full
                  └── the next event takes all that came meanwhile

So a slow reader gets fewer, larger events, and costs neither memory nor anybody else's time.
"""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway.telemetry import record_of

_LARGE = 64 * 1024
"""Bytes that the server buffers for a client without being waited for."""


class ReaderStuck(Exception):
    """The client took nothing of its answer for too long."""


class ReaderTimeout:
    """ASGI middleware: an answer may wait `seconds` for its client to take anything."""

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app = app
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def patient(message: Message) -> None:
            sending = asyncio.timeout(self._seconds)
            try:
                async with sending:
                    for part in _parts(message):
                        await send(part)
            except TimeoutError:
                if not sending.expired():
                    raise
                raise ReaderStuck(f"the client took nothing for {self._seconds:g} s") from None

        try:
            await self._app(scope, receive, patient)
        except ReaderStuck as stuck:
            record = record_of(scope)
            if record is not None:
                record.failed("abort", str(stuck))
            await _cut_off(receive)


def _parts(message: Message) -> list[Message]:
    """The server waits for its buffer before it writes, so never after the end of an answer: a large one gets
    an end of its own, which waits.
    """
    if message.get("more_body") or len(message.get("body", b"")) <= _LARGE:
        return [message]
    return [{**message, "more_body": True}, {"type": "http.response.body", "body": b"", "more_body": False}]


async def _cut_off(receive: Receive) -> None:
    """Drop the connection with all that is buffered for it. Closing it would wait for the client to read.

    ASGI has no word for this: the server's transport is behind `receive`, which Ray Serve wraps.
    """
    owner = receive
    while (inner := getattr(owner, "_receive", None)) is not None:
        owner = inner
    transport = getattr(getattr(owner, "__self__", None), "transport", None)
    if isinstance(transport, asyncio.WriteTransport):
        transport.abort()
        while (await receive())["type"] != "http.disconnect":
            pass
