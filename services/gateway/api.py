"""The HTTP surface: routes. Requests become generations in serving.py, errors are answered in refusals.py."""

from typing import Any

from fastapi import FastAPI, Request
from opentelemetry.trace import Tracer
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response

from services.gateway import pipelines_api, refusals, requests_api
from services.gateway.access import AccessControl
from services.gateway.answers import (
    ChatAnswer,
    ChatCompletion,
    Completion,
    CompletionAnswer,
    Model,
    ModelList,
)
from services.gateway.bounds import HeaderLimit
from services.gateway.collect import CONTENT_TYPE
from services.gateway.engine import Engine
from services.gateway.intake import json_route
from services.gateway.keys import Keyring
from services.gateway.pipelines_api import Scaler
from services.gateway.readers import ReaderTimeout
from services.gateway.refusals import RETRY_AFTER_S, ErrorBody, retry_after
from services.gateway.schema import ChatRequest, CompletionRequest
from services.gateway.serving import Serving
from services.gateway.telemetry import GatewayMetrics, Telemetry
from services.gateway.tokenizer import Tokenizer
from shared.config import Config
from shared.metrics import Registry

_ENDPOINTS = frozenset(
    {"/v1/models", "/v1/chat/completions", "/v1/completions", "/v1/requests", "/v1/pipelines"}
)
_ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}}


def _answers(whole: type[Any]) -> dict[int | str, dict[str, Any]]:
    """For /openapi.json: an answer is one object, or with stream: true a stream of events."""
    return {200: {"model": whole, "content": {"text/event-stream": {}}}, **_ERRORS}


def create_app(
    engine: Engine,
    tokenizer: Tokenizer,
    config: Config,
    registry: Registry,
    tracer: Tracer,
    keyring: Keyring | None = None,
    scaler: Scaler | None = None,
) -> FastAPI:
    """The gateway's ASGI application.

    registry: this process's metrics
    tracer: for the request spans (`skipjoin.gateway`)
    keyring: only holders of its keys are served; None: everybody is
    scaler: adds and removes pipelines; None: nobody can
    """
    service = Serving(engine, tokenizer, config)
    app = FastAPI(title="Skipjoin", docs_url=None, redoc_url=None, redirect_slashes=False)
    app.router.route_class = json_route(config.gateway.max_body_bytes)
    app.add_middleware(ReaderTimeout, seconds=config.gateway.reader_timeout_s)
    app.add_middleware(HeaderLimit, limit=config.gateway.max_header_bytes)
    if keyring is not None:
        app.add_middleware(AccessControl, keyring=keyring)
    app.add_middleware(
        Telemetry,
        tracer=tracer,
        metrics=GatewayMetrics(registry),
        model=service.model,
        endpoints=_ENDPOINTS,
    )
    if config.gateway.cors_origins:  # outermost: a browser asks first, without a key
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.gateway.cors_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["retry-after", "x-request-id"],
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

    requests_api.install(app, service.requests, engine, exposed=config.gateway.exposed)
    pipelines_api.install(app, engine, config, scaler)

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
        body = {"status": "not ready", "reason": reason}
        return JSONResponse(body, 503, retry_after(RETRY_AFTER_S))

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(await engine.metrics(), headers={"content-type": CONTENT_TYPE})

    return app
