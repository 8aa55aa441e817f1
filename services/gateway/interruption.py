"""Ending a request from outside: its client left, its deadline passed, somebody cancelled it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.types import Receive

from services.gateway.refusals import ClientGone
from shared.errors import DeadlinePassed


class Interruption:
    """Cancels the block that `guard` guards and makes it raise the reason; the first reason counts.

    Works like asyncio.timeout: whatever happens, a token costs nothing more.

    deadline: seconds that the request may take as a whole; waited: those that have passed
    """

    def __init__(self, deadline: float | None = None, waited: float = 0.0) -> None:
        self._deadline = deadline
        self._left = None if deadline is None else max(0.0, deadline - waited)
        self._task: asyncio.Task[object] | None = None
        self._reason: Exception | None = None
        self._cancels = False

    def because(self, reason: Exception) -> None:
        """Before the block is entered, entering raises; after it was left, nothing happens."""
        if self._reason is None:
            self._reason = reason
            if self._task is not None:
                self._cancels = True
                self._task.cancel()

    @asynccontextmanager
    async def guard(self, receive: Receive) -> AsyncGenerator[None]:
        """The request's body must have been read: what comes now can only be the client's leaving."""
        if self._reason is not None:
            raise self._reason
        task = self._task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        watcher = asyncio.create_task(self._watch(receive))
        timer = self._start_timer()
        try:
            yield
        except asyncio.CancelledError:
            if self._cancels:
                self._cancels = False
                if task.uncancel() <= before:
                    assert self._reason is not None
                    raise self._reason from None
            raise
        finally:
            self._task = None
            watcher.cancel()
            if timer is not None:
                timer.cancel()
            if self._cancels:
                # The block ended by itself in the same moment: the cancellation must not hit what follows.
                await _take_back(task, before)

    def _start_timer(self) -> asyncio.TimerHandle | None:
        if self._deadline is None or self._left is None:
            return None
        return asyncio.get_running_loop().call_later(self._left, self.because, DeadlinePassed(self._deadline))

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.because(ClientGone())


async def _take_back(task: asyncio.Task[object], before: int) -> None:
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        if task.uncancel() > before:
            raise
