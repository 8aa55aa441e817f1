"""The HTTP surface: routes, and how a request becomes a generation. Errors are answered in refusals.py."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from opentelemetry.trace import Tracer
from starlette.responses import JSONResponse, Response

from services.gateway import refusals
from services.gateway.admission import Admission, Job
from services.gateway.answers import (
    Answer,
    ChatAnswer,
    ChatCompletion,
    Completion,
    CompletionAnswer,
    Model,
    ModelList,
)
from services.gateway.choices import Choices
from services.gateway.collect import CONTENT_TYPE
from services.gateway.engine import Engine
from services.gateway.intake import json_route
from services.gateway.refusals import RETRY_AFTER_S, ErrorBody
from services.gateway.schema import ChatRequest, CompletionRequest, GenerationRequest
from services.gateway.sse import EventStream, whole_answer
from services.gateway.streaming import Generation
from services.gateway.telemetry import GatewayMetrics, Telemetry, record_of
from services.gateway.tokenizer import Tokenizer
from shared.config import Config
from shared.errors import NotReady
from shared.messages import Limits
from shared.metrics import Registry

_Body = TypeVar("_Body", bound=GenerationRequest)

_ENDPOINTS = frozenset({"/v1/models", "/v1/chat/completions", "/v1/completions"})
_ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}}


def _answers(whole: type[Any]) -> dict[int | str, dict[str, Any]]:
    """For /openapi.json: an answer is one object, or with stream: true a stream of events."""
    return {200: {"model": whole, "content": {"text/event-stream": {}}}, **_ERRORS}


class _Service:
    """What the routes share."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, model: str) -> None:
        self.engine = engine
        self.model = model
        self.created = int(time.time())
        self.admission = Admission(tokenizer, model, engine.instance)
        self._tokenizer = tokenizer

    async def generate(
        self,
        request: Request,
        body: _Body,
        admit: Callable[[_Body, Limits], list[Job]],
        answer_type: type[Answer],
    ) -> Response:
        """Admit, submit and answer. Raises InvalidRequest, NotReady, GenerationFailed or ClientGone."""
        record = record_of(request.scope)
        assert record is not None  # the middleware covers /v1
        self.admission.check_model(body.model)
        limits = self._limits_when_ready()

        started = time.perf_counter()
        jobs = await asyncio.to_thread(admit, body, limits)
        record.child("tokenize", time.perf_counter() - started)
        waited = record.waited
        generations = [
            Generation(self.engine, job.after(waited), self._tokenizer.token_bytes, record.traceparent)
            for job in jobs
        ]
        choices = Choices(generations, body.choices)
        first = jobs[0].submit
        names = None if first.sampling.logprobs is None else self._tokenizer.names
        answer = answer_type(first.job_id, self.model, include_usage=body.include_usage, names=names)
        if body.stream:
            return EventStream(choices, answer, record)
        return await whole_answer(choices, answer, record, request.receive)

    def describe_model(self) -> Model:
        limits = self.engine.limits
        return Model(
            id=self.model, created=self.created, max_model_len=limits.max_model_len if limits else None
        )

    def _limits_when_ready(self) -> Limits:
        ready, reason = self.engine.ready
        limits = self.engine.limits
        if not ready or limits is None:
            raise NotReady(reason or "the limits of requests are not known yet")
        return limits


def create_app(
    engine: Engine, tokenizer: Tokenizer, config: Config, registry: Registry, tracer: Tracer
) -> FastAPI:
    """The gateway's ASGI application.

    registry: this process's metrics
    tracer: for the request spans (`skipjoin.gateway`)
    """
    service = _Service(engine, tokenizer, config.model.served_name)
    app = FastAPI(title="Skipjoin", docs_url=None, redoc_url=None, redirect_slashes=False)
    app.router.route_class = json_route(config.gateway.max_body_bytes)
    app.add_middleware(
        Telemetry,
        tracer=tracer,
        metrics=GatewayMetrics(registry),
        model=service.model,
        endpoints=_ENDPOINTS,
    )
    refusals.install(app)

    @app.post("/v1/chat/completions", responses=_answers(ChatCompletion))
    async def chat_completions(request: Request, body: ChatRequest) -> Response:
        return await service.generate(request, body, service.admission.chat, ChatAnswer)

    @app.post("/v1/completions", responses=_answers(Completion))
    async def completions(request: Request, body: CompletionRequest) -> Response:
        return await service.generate(request, body, service.admission.completion, CompletionAnswer)

    @app.get("/v1/models", response_model=ModelList)
    async def models() -> ModelList:
        return ModelList(data=[service.describe_model()])

    @app.get("/v1/models/{model:path}", response_model=Model, responses=_ERRORS)
    async def model(model: str) -> Model:
        service.admission.check_model(model)
        return service.describe_model()

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Answers while the process lives; /ready says whether it can serve."""
        return {"status": "ok"}

    @app.get("/ready")
    async def ready() -> Response:
        """503 with the reason while requests would be refused."""
        is_ready, reason = engine.ready
        if is_ready:
            return JSONResponse({"status": "ready"})
        headers = {"retry-after": str(RETRY_AFTER_S)}
        return JSONResponse({"status": "not ready", "reason": reason}, 503, headers)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(await engine.metrics(), headers={"content-type": CONTENT_TYPE})

    return app
