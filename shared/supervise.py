"""Background loops that cannot die or hang silently: the health check raises what killed or stalled them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from shared.clock import Clock, MonotonicClock

log = logging.getLogger("skipjoin.supervise")


_CANCEL_AGAIN_S = 0.1


class LoopDied(RuntimeError):
    """A background loop of a service ended, which it never should."""


class Supervisor:
    """Owns the loops of one service.

    stale_after_s: a loop that has called `beat` before and then not for this long counts as hung
    """

    def __init__(self, service: str, stale_after_s: float = 30.0, clock: Clock | None = None) -> None:
        self._service = service
        self._stale_after_s = stale_after_s
        self._clock = clock or MonotonicClock()
        self.tasks: list[asyncio.Task[None]] = []
        self._beats: dict[str, float] = {}
        self._stopping = False

    def start(self, name: str, loop: Coroutine[Any, Any, None]) -> None:
        """Run `loop` until `stop`; its end or failure makes `check` raise."""
        task = asyncio.get_running_loop().create_task(loop, name=name)
        task.add_done_callback(self._ended)
        self.tasks.append(task)

    def every(self, name: str, seconds: float, action: Callable[[], Awaitable[None]]) -> None:
        """Run `action` again and again, `seconds` apart."""

        async def loop() -> None:
            while True:
                await action()
                self.beat(name)
                await asyncio.sleep(seconds)

        self.start(name, loop())

    def beat(self, name: str) -> None:
        """Note progress of a loop."""
        self._beats[name] = self._clock.now()

    def check(self) -> None:
        """Raises LoopDied if a loop has ended or makes no progress."""
        for task in self.tasks:
            if task.done() and not self._stopping:
                cause = None if task.cancelled() else task.exception()
                raise LoopDied(f"{self._service}: loop {task.get_name()} ended: {cause!r}") from cause
        now = self._clock.now()
        for name, beat in self._beats.items():
            if now - beat > self._stale_after_s:
                raise LoopDied(f"{self._service}: loop {name} made no progress for {now - beat:.0f} s")

    async def stop(self) -> None:
        """Cancel every loop and wait until it is gone.

        Again and again: Python 3.11's `wait_for`, which requests on the bus use, loses a cancellation that
        comes in the same moment as what it waits for.
        """
        self._stopping = True
        pending = {task for task in self.tasks if not task.done()}
        while pending:
            for task in pending:
                task.cancel()
            _, pending = await asyncio.wait(pending, timeout=_CANCEL_AGAIN_S)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not self._stopping and not task.cancelled() and task.exception() is not None:
            log.error("%s: loop %s died", self._service, task.get_name(), exc_info=task.exception())
