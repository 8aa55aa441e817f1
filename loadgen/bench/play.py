"""The open loop: requests are sent when they are due, whatever has become of those before.

    due ──> (wait for a place, if limits.concurrency are open) ──> sent ──> first ──> … ──> end
     └────────────────────── what latencies count from

A conversation is the exception by nature: its next turn is due when its user has read the answer and thought.
"""

import asyncio
import gc
from collections.abc import Callable, Sequence
from typing import Any

from loadgen.bench.client import Client
from loadgen.bench.prompts import Prompts
from loadgen.bench.record import ABORTED, OK, End, Record
from loadgen.bench.schedule import Ask, Talk
from loadgen.bench.settings import Limits

LEAD_S = 0.05
"""Before the first arrival."""

UNFINISHED = "unfinished"
"""Not over when limits.drain_s were."""


class Player:
    """Plays talks once.

    seed: of the prompts; another one makes other prompts
    finished: is told of each request that has ended, in whatever way
    stop: once it is set, all that is open is cancelled, and nothing more is sent
    """

    def __init__(
        self,
        client: Client,
        prompts: Prompts,
        limits: Limits,
        seed: Sequence[object],
        finished: Callable[[Record], None],
        stop: asyncio.Event,
        *,
        chat: bool = False,
    ) -> None:
        self._client, self._prompts, self._limits, self._seed = client, prompts, limits, seed
        self._finished, self._stop, self._chat = finished, stop, chat
        self._places = asyncio.Semaphore(limits.concurrency)
        self._texts: dict[int, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_words = ABORTED
        self._asked = 0
        self._defect: BaseException | None = None

    @property
    def open(self) -> int:
        return len(self._tasks)

    async def play(self, talks: Sequence[Talk]) -> End:
        """Returns when all has ended; times count from the zero of the schedule."""
        for talk in talks:
            for ask in talk.asks:
                self._texts[ask.index] = self._text(ask, first=ask is talk.asks[0])
        gc.collect()
        gc.freeze()  # a collection over what is here already would delay arrivals
        stopped = asyncio.ensure_future(self._stop.wait())
        self._client.began += self._client.now() + LEAD_S
        try:
            for number, talk in enumerate(talks):
                await self._until(talk.at, stopped)
                if self._stop.is_set():
                    break
                task = asyncio.create_task(self._talk(number, talk))
                self._tasks.add(task)
                task.add_done_callback(self._over)
            await self._drain(stopped)
        finally:
            stopped.cancel()
            await self._cancel()
            gc.unfreeze()
        if self._defect is not None:
            raise self._defect
        total = sum(len(talk.asks) for talk in talks)
        return End(self._client.now(), self._stop.is_set(), total - self._asked)

    def _text(self, ask: Ask, first: bool) -> str:
        following = not first and not self._chat
        return self._prompts.text(ask.prompt, (*self._seed, ask.index), following=following)

    async def _until(self, at: float, stopped: "asyncio.Future[Any]") -> None:
        while not self._stop.is_set() and (wait := at - self._client.now()) > 0:
            await asyncio.wait([stopped], timeout=wait)

    async def _drain(self, stopped: "asyncio.Future[Any]") -> None:
        deadline = self._client.now() + self._limits.drain_s
        while self._tasks and not self._stop.is_set() and (wait := deadline - self._client.now()) > 0:
            await asyncio.wait([stopped, *self._tasks], timeout=wait, return_when=asyncio.FIRST_COMPLETED)
        if not self._stop.is_set():
            self._last_words = UNFINISHED

    async def _cancel(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _over(self, task: "asyncio.Task[None]") -> None:
        """What a request can suffer is in its record; an exception is a defect of ours, and ends the run."""
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._defect = task.exception()
            self._stop.set()

    async def _talk(self, number: int, talk: Talk) -> None:
        due = talk.at
        history: list[dict[str, str]] = []
        for turn, ask in enumerate(talk.asks):
            if turn:
                due = self._client.now() + ask.pause
                await asyncio.sleep(ask.pause)
            history.append({"role": "user", "content": self._texts.pop(ask.index)})
            record = Record(
                ask.index, ask.kind, ask.tenant, number, turn, ask.prompt, ask.output, round(due, 6)
            )
            self._asked += 1
            answer = await self._ask(record, history)
            if record.outcome != OK:
                return  # whoever gets no answer has nothing to go on from
            history.append({"role": "assistant", "content": answer})

    async def _ask(self, record: Record, history: list[dict[str, str]]) -> str:
        prompt = list(history) if self._chat else "".join(part["content"] for part in history)
        try:
            async with self._places:
                return await self._client.ask(record, prompt)
        except asyncio.CancelledError:
            record.outcome = self._last_words
            raise
        finally:
            self._finished(record)
