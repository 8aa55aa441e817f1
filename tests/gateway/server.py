"""The gateway over a fake engine, behind a real socket."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import uvicorn

from services.gateway.tokenizer import Tokenizer
from tests.gateway.fakes import FakeEngine, make_app


@contextlib.asynccontextmanager
async def served(engine: FakeEngine, tokenizer: Tokenizer, **gateway: Any) -> AsyncIterator[str]:
    """The base URL of the API. gateway: keys of that section of the configuration"""
    started = asyncio.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            started.set()

    listener = socket.create_server(("127.0.0.1", 0))
    # Connections inherit it: the kernel would take megabytes for a client that does not read.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
    app = make_app(engine, tokenizer, **gateway)
    server = Server(uvicorn.Config(app, log_level="warning", log_config=None, lifespan="off"))
    task = asyncio.create_task(server.serve([listener]))
    await started.wait()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        await task
