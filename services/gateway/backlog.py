"""How much this gateway has taken on, and when to come back if that is too much.

A queue without a bound makes every client wait for answers that nobody waits for any more. So a request is
refused at once, before its prompt costs anything if their number is the reason.
"""

import math
from collections.abc import Sequence
from typing import Protocol

from shared.clock import Clock
from shared.costmodel import GUESS, BatchLoad, CostModel
from shared.errors import InvalidRequest, Overloaded
from shared.messages import Submit

LONGEST_RETRY_S = 60.0
"""OpenAI's clients take no notice of a longer Retry-After."""
_ESTIMATE_FOR_S = 0.25
"""An estimate looks at every request; under a flood of refusals it is made so often and no oftener."""
_LEARNING = 0.05
"""Weight of one answer in the mean share of its max_tokens that an answer uses."""


class Progress(Protocol):
    @property
    def completion_tokens(self) -> int: ...


class Place:
    """One unfinished request's place. Give it back with `leave`, once or more often.

    progress: where its answer is, once it is being generated
    """

    def __init__(self, backlog: "Backlog") -> None:
        self._backlog = backlog
        self.jobs = 0
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.progress: Progress | None = None

    @property
    def tokens(self) -> int:
        """Prompt and longest answer, of all choices."""
        return self.prompt_tokens + self.output_tokens

    @property
    def written(self) -> int:
        return self.progress.completion_tokens if self.progress else 0

    def take(self, jobs: Sequence[Submit], length_field: str = "max_tokens") -> None:
        """Count what the request turned out to ask for.

        length_field: what errors about the answer's length name
        Raises Overloaded, or InvalidRequest for a request that could never be taken.
        """
        self._backlog.take(self, jobs, length_field)

    def leave(self) -> None:
        self._backlog.leave(self)


class Backlog:
    """Pure; limits are of one gateway process.

    requests, tokens: the most that may be unfinished; tokens are prompt + max_tokens of every choice
    batch: jobs in one iteration
    cost: what iterations cost, as far as is known; pipelines: those that share the work
    """

    def __init__(self, requests: int, tokens: int, batch: int, clock: Clock) -> None:
        self._most_requests = requests
        self._most_tokens = tokens
        self._batch = batch
        self._clock = clock
        self.cost: CostModel = GUESS
        self.pipelines = 1
        self._places: set[Place] = set()
        self.tokens = 0
        self._used_share = 1.0
        self._estimate = (-math.inf, 0.0)

    def __len__(self) -> int:
        return len(self._places)

    def enter(self) -> Place:
        """Raises Overloaded if there is no place for one more request."""
        if len(self._places) >= self._most_requests:
            raise self._overloaded(
                "requests",
                f"{len(self._places)} requests are unfinished here, the limit is {self._most_requests} "
                "(gateway.max_queued_requests)",
            )
        place = Place(self)
        self._places.add(place)
        return place

    def take(self, place: Place, jobs: Sequence[Submit], length_field: str) -> None:
        """See `Place.take`."""
        prompt = sum(len(job.prompt) for job in jobs)
        output = sum(job.max_tokens for job in jobs)
        asked, limit = prompt + output, self._most_tokens
        if asked > limit:
            raise InvalidRequest(
                f"{length_field}: prompt and longest answer of all choices make {asked} tokens, more than "
                f"the whole queue takes: {limit} (gateway.max_queued_tokens); ask for less",
                param=length_field,
                code="request_too_large",
            )
        if self.tokens + asked > limit:
            raise self._overloaded(
                "tokens",
                f"unfinished requests may need {self.tokens} tokens and this one {asked}, the limit is "
                f"{limit} (gateway.max_queued_tokens)",
            )
        place.jobs, place.prompt_tokens, place.output_tokens = len(jobs), prompt, output
        self.tokens += asked

    def leave(self, place: Place) -> None:
        if place not in self._places:
            return
        self._places.remove(place)
        self.tokens -= place.tokens
        if place.written:
            self._used_share += _LEARNING * (place.written / place.output_tokens - self._used_share)

    def seconds_left(self) -> float:
        """Predicted time until all that was taken is done, if nothing more comes."""
        jobs = outputs = context = 0
        prefill = 0.0
        for place in self._places:
            if not place.jobs:
                continue
            written = place.written
            jobs += place.jobs
            context += place.prompt_tokens + written
            outputs += max(place.jobs, round(self._used_share * place.output_tokens) - written)
            if not written:
                prefill += place.jobs * self.cost.prefill(place.prompt_tokens // place.jobs)
        if not jobs:
            return 0.0
        pipelines = max(1, self.pipelines)
        running = min(-(-jobs // pipelines), self._batch)  # in each of them
        decode = self.cost.seconds(BatchLoad(0, 0, running, running * context // jobs))
        return (prefill + decode * outputs / running) / pipelines

    def _overloaded(self, kind: str, reason: str) -> Overloaded:
        now = self._clock.now()
        made, seconds = self._estimate
        if now - made > _ESTIMATE_FOR_S:
            seconds = self.seconds_left()
            self._estimate = (now, seconds)
        return Overloaded(reason, min(seconds, LONGEST_RETRY_S), kind=kind, code="queue_full")
