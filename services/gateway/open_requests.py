"""The requests of this gateway that can be asked about and cancelled: the unfinished, and the last to end."""

import time
from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice

from services.gateway.choices import Choices
from services.gateway.interruption import Interruption
from shared.errors import RequestCancelled
from shared.ids import JobId
from shared.messages import AskRequests, Requests, RequestView

ENDED_KEPT = 1000
"""As many as the scheduler can explain."""

MOST_TOLD = 2000
"""Requests in one message: some 500 KB. Of one name fewer, as all their jobs are told of."""

_MOST_OF_A_NAME = 100


class OpenRequest:
    """request_id: the client's name for it, which need not be unique; answer_id: ours, which is
    key: name of the API key that it came with
    """

    def __init__(
        self,
        request_id: str,
        answer_id: str,
        endpoint: str,
        key: str | None,
        job_ids: Sequence[JobId],
        choices: Choices,
        interruption: Interruption,
        *,
        waited: float = 0.0,
        trace: str | None = None,
    ) -> None:
        """waited: seconds since it arrived; trace: W3C traceparent of its span, if that is recorded"""
        self.request_id = request_id
        self.answer_id = answer_id
        self.endpoint = endpoint
        self.key = key
        self.job_ids = list(job_ids)
        self.arrived = time.time() - waited
        self.created = int(self.arrived)
        self.trace = trace
        self.finishes: tuple[str, ...] = ("",) * len(self.job_ids)
        """Of each choice, how its answer ended; empty if it did not."""
        self._began = time.perf_counter() - waited
        self._total_s: float | None = None
        self.ended = False
        self.prompt_tokens = choices.prompt_tokens
        self._choices: Choices | None = choices
        self._completion_tokens = 0
        self._interruption: Interruption | None = interruption

    @property
    def completion_tokens(self) -> int:
        return self._choices.completion_tokens if self._choices else self._completion_tokens

    @property
    def total_s(self) -> float:
        """Seconds from its arrival to its end, or so far."""
        return time.perf_counter() - self._began if self._total_s is None else self._total_s

    def view(self, *, jobs: bool) -> RequestView:
        return RequestView(
            self.request_id,
            self.answer_id,
            self.endpoint,
            self.key,
            self.created,
            self.ended,
            self.prompt_tokens,
            self.completion_tokens,
            self.job_ids if jobs else [],
        )

    def cancel(self) -> None:
        """Its client gets an error; its jobs are aborted. Does nothing for one that has ended."""
        if self._interruption is not None:
            self._interruption.because(RequestCancelled("it was cancelled"))

    def close(self) -> None:
        """Keep only what can still be asked about."""
        self._completion_tokens = self.completion_tokens
        if self._choices is not None:
            self.finishes = self._choices.finishes
        self._total_s = self.total_s
        self._choices = self._interruption = None
        self.ended = True


class OpenRequests:
    """By answer id, oldest first."""

    def __init__(self) -> None:
        self._open: dict[str, OpenRequest] = {}
        self._of_job: dict[JobId, OpenRequest] = {}
        self._ended: OrderedDict[str, OpenRequest] = OrderedDict()

    def add(self, request: OpenRequest) -> None:
        self._open[request.answer_id] = request
        self._of_job.update(dict.fromkeys(request.job_ids, request))

    def close(self, request: OpenRequest) -> None:
        del self._open[request.answer_id]
        for job_id in request.job_ids:
            del self._of_job[job_id]
        request.close()
        self._ended[request.answer_id] = request
        if len(self._ended) > ENDED_KEPT:
            self._ended.popitem(last=False)

    def name_of(self, job_id: JobId) -> str | None:
        """The request id of an unfinished request's job."""
        request = self._of_job.get(job_id)
        return request.request_id if request is not None else None

    def tell(self, asked: AskRequests) -> Requests:
        """What another gateway wants to know."""
        if asked.name is not None:
            return Requests([each.view(jobs=True) for each in self.find(asked.name)[:_MOST_OF_A_NAME]])
        told = [each.view(jobs=False) for each in islice(self._open.values(), MOST_TOLD)]
        return Requests(told, len(self._open) - len(told))

    def find(self, name: str) -> list[OpenRequest]:
        """Those with this request id or answer id: the unfinished first, of each the newest first."""
        return [
            request
            for known in (self._open, self._ended)
            for request in reversed(known.values())
            if name in (request.answer_id, request.request_id)
        ]
