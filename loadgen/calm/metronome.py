"""A stand-in for all that is behind the gateway: a token for every job at a fixed rate, over the real bus."""

import asyncio
import time
from collections import defaultdict
from typing import NamedTuple, Self

from services.gateway.tokenizer import Tokenizer
from shared.bus import Bus
from shared.clock import next_epoch
from shared.config import Config
from shared.costmodel import GUESS
from shared.ids import JobId
from shared.messages import (
    Abort,
    Accepted,
    FinishReason,
    Hello,
    JobTokens,
    Limits,
    Submit,
    TokenBatch,
)
from shared.metrics import Registry
from shared.subjects import Subjects
from shared.supervise import Supervisor

_TEXT = "The river runs from the mountain to the harbour and carries the winter away. "
_LIMITS = Limits(1_000_000, 1_000_000)
_HELLO_EVERY_S = 1.0


class Beat(NamedTuple):
    """Of one job: when it was submitted and when its first token left, seconds of `time.perf_counter`."""

    submitted: float
    first: float


class Metronome:
    """An async context. The first token of a job comes with everybody's next ones, in the same message, as
    those of a real iteration do.

    period: seconds from one token of a job to its next
    beats: of jobs that have had their first token, by tenant
    late: seconds by which a beat came after it was due, one entry a beat
    """

    def __init__(self, config: Config, tokenizer: Tokenizer, period: float) -> None:
        self.period = period
        self.beats: dict[str, list[Beat]] = defaultdict(list)
        self.late: list[float] = []
        self._config = config
        self._text = tokenizer.encode(_TEXT, special_tokens=False)
        self._jobs: dict[JobId, tuple[Submit, float]] = {}
        self._sent: dict[JobId, int] = {}
        self._supervisor = Supervisor("metronome")

    @property
    def jobs(self) -> int:
        return len(self._jobs)

    async def __aenter__(self) -> Self:
        subjects = Subjects(self._config.app, 0)
        self._bus = await Bus.connect(self._config.nats, subjects, "scheduler", Registry())
        self._bus.epoch = next_epoch(self._bus.epoch)
        inbox = await self._bus.subscribe(subjects.scheduler_all, depth=65536)

        async def read_inbox() -> None:
            async for delivery in inbox:
                match delivery.body:
                    case Submit() as submit:
                        self._jobs[submit.job_id] = submit, time.perf_counter()
                        self._sent[submit.job_id] = 0
                        await self._bus.reply(delivery, Accepted(submit.job_id))
                    case Abort(job_ids):
                        for job_id in job_ids:
                            self._forget(job_id)
                    case _:
                        pass

        self._supervisor.start("inbox", read_inbox())
        self._supervisor.start("beat", self._beat())
        self._supervisor.every("hello", _HELLO_EVERY_S, self._say_hello)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._supervisor.check()
        await self._supervisor.stop()
        await self._bus.close()

    def check(self) -> None:
        """Raises if a loop has ended."""
        self._supervisor.check()

    async def _say_hello(self) -> None:
        hello = Hello("scheduler", self._bus.instance, True, limits=_LIMITS, cost=GUESS)
        await self._bus.publish(self._bus.subjects.hello("scheduler"), hello)

    async def _beat(self) -> None:
        due = time.perf_counter()
        while True:
            due += self.period
            await asyncio.sleep(due - time.perf_counter())
            self.late.append(time.perf_counter() - due)
            batches: dict[str, list[JobTokens]] = defaultdict(list)
            begun: list[tuple[Submit, float]] = []
            for submit, submitted in list(self._jobs.values()):
                number = self._sent[submit.job_id]
                if not number:
                    begun.append((submit, submitted))
                batches[submit.reply_to].append(self._next(submit, number))
            now = time.perf_counter()
            for submit, submitted in begun:
                self.beats[submit.tenant].append(Beat(submitted, now))
            for receiver, items in batches.items():
                await self._bus.publish(self._bus.subjects.tokens(receiver), TokenBatch(items))

    def _next(self, submit: Submit, number: int) -> JobTokens:
        last = number + 1 == submit.max_tokens
        self._sent[submit.job_id] += 1
        if last:
            self._forget(submit.job_id)
        token = self._text[number % len(self._text)]
        return JobTokens(submit.job_id, number, [token], FinishReason.LENGTH if last else None)

    def _forget(self, job_id: JobId) -> None:
        self._jobs.pop(job_id, None)
        self._sent.pop(job_id, None)
