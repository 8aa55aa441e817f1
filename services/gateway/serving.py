"""How a request becomes a generation and its answer; everything that may refuse it, in order."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from fastapi import Request
from starlette.responses import Response

from services.gateway.access import access_of
from services.gateway.admission import Admission, Job
from services.gateway.answers import Answer, Model
from services.gateway.backlog import Backlog
from services.gateway.bounds import check_choices, check_jobs
from services.gateway.choices import Choices
from services.gateway.deadline import deadline_of
from services.gateway.engine import Engine
from services.gateway.interruption import Interruption
from services.gateway.open_requests import OpenRequest, OpenRequests
from services.gateway.schema import GenerationRequest
from services.gateway.sse import EventStream, whole_answer
from services.gateway.streaming import Generation
from services.gateway.structured.check import GrammarCheck
from services.gateway.telemetry import record_of
from services.gateway.timelines import KeptTimelines
from services.gateway.tokenizer import Tokenizer
from shared.clock import Clock, MonotonicClock
from shared.config import Config
from shared.errors import NotReady
from shared.messages import Limits

_Body = TypeVar("_Body", bound=GenerationRequest)


class Serving:
    """What the routes share."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        config: Config,
        timelines: KeptTimelines,
        requests: OpenRequests,
        clock: Clock | None = None,
    ) -> None:
        model = config.model.served_name
        self.engine = engine
        self.model = model
        self.created = int(time.time())
        self.admission = Admission(tokenizer, model, engine.instance, config.gateway.max_grammar_bytes)
        self._grammars = GrammarCheck(tokenizer.folder)
        self._tokenizer = tokenizer
        self.requests = requests
        self._timelines = timelines
        self._config = config.gateway
        self._logs_prompts = config.logging.prompts
        self._backlog = Backlog(
            config.gateway.max_queued_requests,
            config.gateway.max_queued_tokens,
            config.scheduler.max_batch_size,
            clock or MonotonicClock(),
        )

    async def generate(
        self,
        request: Request,
        body: _Body,
        admit: Callable[[_Body, Limits], list[Job]],
        answer_type: Callable[..., Answer],
    ) -> Response:
        """Admit, submit and answer.

        answer_type: an Answer, or what makes one of the same arguments
        Raises InvalidRequest, NotReady, Overloaded, DeadlinePassed,
        GenerationFailed or ClientGone.
        """
        record = record_of(request.scope)
        assert record is not None  # the middleware covers /v1
        record.request_id = body.request_id or record.request_id
        access = access_of(request.scope)
        key = access.key.name if access else None
        record.log.received(record.request_id, stream=bool(body.stream), choices=body.choices, key=key)
        self.admission.check_model(body.model)
        limits = self._limits_when_ready()
        check_choices(body.choices, self._config)
        deadline = deadline_of(request, body.timeout, self._config.max_timeout_s)
        if access is not None:
            access.begin()
            record.held.callback(access.end)
        self._backlog.cost = self.engine.cost
        self._backlog.pipelines = sum(not each.failure for each in self.engine.pipelines)
        place = self._backlog.enter()
        record.held.callback(place.leave)

        started = time.perf_counter()
        jobs = await asyncio.to_thread(admit, body, limits)
        check_jobs(jobs, body.choices, body.prompt_field, self._config)
        if jobs[0].constraint is not None and jobs[0].submit.grammar is not None:  # all have the same
            await self._grammars.check(jobs[0].constraint, jobs[0].submit.grammar.ends)
        place.take([job.submit for job in jobs], body.length_field)
        record.child("tokenize", time.perf_counter() - started)
        waited, tenant = record.waited, access.key.tenant if access else None
        generations = [
            Generation(
                self.engine,
                job.after(waited, record.request_id, choice, tenant),
                self._tokenizer.token_bytes,
                record.traceparent,
            )
            for choice, job in enumerate(jobs)
        ]
        choices = Choices(generations, body.choices)
        job_ids = [job.submit.job_id for job in jobs]
        record.submits(job_ids, choices.prompt_tokens, self._prompts(jobs, body.choices))
        place.progress = choices
        first = jobs[0].submit
        names = None if first.sampling.logprobs is None else self._tokenizer.names
        prompts = [job.submit.prompt for job in jobs] if body.reports_ids else None
        answer = answer_type(
            first.job_id, self.model, include_usage=body.include_usage, names=names, prompts=prompts
        )
        record.generates(first, jobs[0].stops, choices=len(jobs), stream=bool(body.stream), answer=answer.id)
        interruption = Interruption(deadline, record.waited)
        opened = OpenRequest(
            record.request_id,
            answer.id,
            record.endpoint,
            key,
            job_ids,
            choices,
            interruption,
            waited=record.waited,
            trace=record.traceparent,
        )
        self.requests.add(opened)
        record.held.callback(self._close, opened)
        if body.stream:
            return EventStream(choices, answer, record, interruption)
        return await whole_answer(choices, answer, record, interruption, request.receive)

    def _close(self, opened: OpenRequest) -> None:
        self.requests.close(opened)
        self._timelines.request_ended(opened)

    def describe_model(self) -> Model:
        limits = self.engine.limits
        return Model(
            id=self.model, created=self.created, max_model_len=limits.max_model_len if limits else None
        )

    def _prompts(self, jobs: list[Job], n: int) -> list[str] | None:
        """Their text, of each prompt once; None unless it is to be logged."""
        if not self._logs_prompts:
            return None
        return [self._tokenizer.decode(job.submit.prompt) for job in jobs[::n]]

    def _limits_when_ready(self) -> Limits:
        ready, reason = self.engine.ready
        limits = self.engine.limits
        if not ready or limits is None:
            raise NotReady(reason or "the limits of requests are not known yet")
        return limits
