"""Conversations, turn by turn: each prompt is all that was said before and a new part (FastSwitch's load).

    begins ──> turn 0 ──ended──> think ──> turn 1 ──ended──> think ──> …

Arrivals thus depend on what is simulated, unlike those of a workload that is known beforehand.
"""

import heapq
import math
from collections.abc import Callable, Sequence

import numpy as np

from loadgen.simulate.ledger import FullLedger
from loadgen.simulate.models import ModelProfile
from loadgen.simulate.pipeline import TOKEN, Outcome, Pipeline
from loadgen.workload.arrivals import gamma
from loadgen.workload.requests import Request, Turn
from services.scheduler.job import Job
from shared.config import Config
from shared.ids import JobId
from shared.messages import FinishReason, Timeline


class Replay:
    """Plays conversations on one pipeline.

    rate: conversations that begin per second, Poisson; think_s: mean pause before a next turn, exponential
    Turns that would exceed the device's room end their conversation.
    """

    def __init__(self, config: Config, model: ModelProfile, rate: float, think_s: float, seed: int) -> None:
        self._ledger = _Turns(self._ended)
        self.pipeline = Pipeline(config, model, ledger=self._ledger)
        self._most = config.kv.device_blocks * config.kv.block_size
        self._rate, self._think_s, self._seed = rate, think_s, seed
        self._pauses = np.random.default_rng(seed)
        self._due: list[tuple[float, int]] = []  # (when, conversation)
        self._talks: list[_Talk] = []
        self._speaker: dict[JobId, int] = {}
        self.skipped = 0
        """Turns that did not fit."""

    def run(self, conversations: Sequence[Sequence[Turn]]) -> Outcome:
        begins = gamma(len(conversations), self._rate, 1.0, self._seed).tolist()
        self._talks = [_Talk(number, turns) for number, turns in enumerate(conversations)]
        self._due = list(zip(begins, range(len(begins)), strict=True))
        heapq.heapify(self._due)
        pipeline = self.pipeline
        while self._due or pipeline.next_event_at < math.inf:
            if self._due and self._due[0][0] <= pipeline.next_event_at:
                self._speak(*heapq.heappop(self._due))
            else:
                # One event at a time: it may end a turn, and so bring another before the next.
                pipeline.advance(math.nextafter(pipeline.next_event_at, math.inf))
        return pipeline.finish()

    def _speak(self, now: float, number: int) -> None:
        talk = self._talks[number]
        turn = talk.turns[talk.turn]
        if len(talk.tokens) + turn.said + turn.answer > self._most:
            self.skipped += len(talk.turns) - talk.turn
            return
        talk.tokens = talk.tokens + [talk.token] * turn.said
        self.pipeline.advance(now)
        job_id = self.pipeline.submit(Request(now, len(talk.tokens), turn.answer), talk.tokens)
        self._speaker[job_id] = number

    def _ended(self, job_id: JobId, now: float) -> None:
        number = self._speaker.pop(job_id)
        talk = self._talks[number]
        talk.tokens = talk.tokens + [TOKEN] * talk.turns[talk.turn].answer
        talk.turn += 1
        if talk.turn < len(talk.turns):
            heapq.heappush(self._due, (now + self._pauses.exponential(self._think_s), number))


class _Talk:
    """tokens: all that was said; turn: the next one; token: what its user says, again and again"""

    def __init__(self, number: int, turns: Sequence[Turn]) -> None:
        self.turns = turns
        self.turn = 0
        self.tokens: list[int] = []
        self.token = TOKEN + 1 + number  # conversations have no block in common


class _Turns(FullLedger):
    def __init__(self, ended: Callable[[JobId, float], None]) -> None:
        super().__init__()
        self._ended = ended

    def finished(self, job: Job, reason: FinishReason, now: float, timeline: Timeline) -> None:
        super().finished(job, reason, now, timeline)
        self._ended(job.job_id, now)
