"""An OpenAI-compatible server without a model, whose answers take the time that a script says.

    python -m loadgen.stub_server PORT        one token per answer, at once

For tests of the client, and to measure what the client itself costs.
"""

import asyncio
import contextlib
import json
import re
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

Send = Callable[[bytes], Awaitable[None]]
Script = Callable[[dict[str, Any], Send], Awaitable[None]]
"""Answers a request body by sending parts of the stream; returning ends the stream."""


def event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"

_WORDS = re.compile(r"\w+|[^\w\s]")
"""Its tokens of a prompt."""


def token(text: str = " a", ids: list[int] | None = None, finish: str | None = None) -> bytes:
    """A chunk of a completion."""
    choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": finish}
    return event({"choices": [choice if ids is None else {**choice, "token_ids": ids}]})


def usage(prompt: int, completion: int) -> bytes:
    tokens = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return event({"choices": [], "usage": tokens})


async def at_once(body: dict[str, Any], send: Send) -> None:
    """All tokens in one part."""
    count = body["max_tokens"]
    tokens = [token() for _ in range(count - 1)] + [token(finish="length")]
    await send(b"".join(tokens) + usage(len(_WORDS.findall(str(body.get("prompt")))), count) + DONE)


class StubServer:
    """script: answers; refuse: (status, body) for a request that gets no stream; seen: request bodies"""

    def __init__(
        self,
        script: Script = at_once,
        refuse: Callable[[dict[str, Any]], tuple[int, dict[str, Any]] | None] = lambda body: None,
    ) -> None:
        self.script, self.refuse = script, refuse
        self.seen: list[dict[str, Any]] = []
        self.cut_off = 0
        """Answers whose client went away."""
        self.app = web.Application()
        self.app.router.add_get("/v1/models", self._models)
        self.app.router.add_post("/v1/completions", self._answer)
        self.app.router.add_post("/v1/chat/completions", self._answer)

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "stub"}]})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        self.seen.append(body)
        refusal = self.refuse(body)
        if refusal is not None:
            return web.json_response(refusal[1], status=refusal[0])
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            await self.script(body, response.write)
        except (ConnectionError, asyncio.CancelledError):
            self.cut_off += 1
            raise
        return response


@contextlib.asynccontextmanager
async def served(server: StubServer, port: int = 0) -> AsyncIterator[str]:
    """The server's URL while it runs in this event loop."""
    runner = web.AppRunner(server.app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    listener = socket.create_server(("127.0.0.1", port))
    await web.SockSite(runner, listener).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        await runner.cleanup()


async def _serve(port: int) -> None:
    server = StubServer()
    async with served(server, port) as url:
        print(url, flush=True)
        await asyncio.Event().wait()


def main() -> None:
    import uvloop

    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(_serve(int(sys.argv[1]) if len(sys.argv) > 1 else 0))


if __name__ == "__main__":
    main()
