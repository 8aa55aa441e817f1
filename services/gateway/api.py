"""The HTTP surface: routes. Requests become generations in serving.py, errors are answered in refusals.py."""

from functools import partial
from importlib.metadata import version

from fastapi import FastAPI, Request
from opentelemetry.trace import Tracer
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, PlainTextResponse, Response

from services.gateway import (
    board_api,
    openapi,
    pipelines_api,
    refusals,
    requests_api,
    timeline_api,
    tokenize_api,
    web,
)
from services.gateway.access import AccessControl
from services.gateway.answers import (
    ChatAnswer,
    ChatCompletion,
    Completion,
    CompletionAnswer,
    Model,
    ModelList,
)
from services.gateway.board import Board
from services.gateway.bounds import HeaderLimit
from services.gateway.collect import CONTENT_TYPE
from services.gateway.engine import Engine
from services.gateway.intake import json_route
from services.gateway.keys import Keyring
from services.gateway.open_requests import OpenRequests
from services.gateway.openapi import ERRORS, generated, plain
from services.gateway.pipelines_api import Scaler
from services.gateway.readers import ReaderTimeout
from services.gateway.refusals import RETRY_AFTER_S, retry_after
from services.gateway.response_answer import ResponseAnswer
from services.gateway.response_object import ResponseObject
from services.gateway.response_request import ResponseRequest
from services.gateway.schema import ChatRequest, CompletionRequest
from services.gateway.serving import Serving
from services.gateway.state import Health, Readiness, Version
from services.gateway.telemetry import GatewayMetrics, Telemetry
from services.gateway.timelines import KeptTimelines
from services.gateway.tokenizer import Tokenizer
from shared.config import Config
from shared.metrics import Registry

_ENDPOINTS = frozenset(
    f"/v1/{name}"
    for name in (
        "models",
        "chat/completions",
        "completions",
        "responses",
        "requests",
        "pipelines",
        "board",
        "timeline",
    )
)
_CHUNKS = "a chunk as JSON, or an error; `[DONE]` in the last event"
_EVENTS = "the event as JSON, as OpenAI's response.* events"
_EVENT_NAME = {"type": "string", "pattern": "^response[.]", "description": "type of the event"}


def create_app(
    engine: Engine,
    tokenizer: Tokenizer,
    config: Config,
    registry: Registry,
    tracer: Tracer,
    keyring: Keyring | None = None,
    scaler: Scaler | None = None,
    timelines: KeptTimelines | None = None,
    requests: OpenRequests | None = None,
) -> FastAPI:
    """The gateway's ASGI application.

    registry: this process's metrics
    tracer: for the request spans (`skipjoin.gateway`)
    keyring: only holders of its keys are served; None: everybody is
    scaler: adds and removes pipelines; None: nobody can
    timelines: where those of ended requests arrive
    requests: where those that are served here are kept
    """
    kept = KeptTimelines(config.timeline.requests) if timelines is None else timelines
    service = Serving(engine, tokenizer, config, kept, OpenRequests() if requests is None else requests)
    app = FastAPI(
        title="Skipjoin",
        version=version("skipjoin"),
        description="LLM serving that preempts at every token, behind OpenAI's API.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
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

    @app.post("/v1/chat/completions", responses=generated(ChatCompletion, _CHUNKS), tags=["generation"])
    async def chat_completions(request: Request, body: ChatRequest) -> Response:
        """Go on from a conversation."""
        return await service.generate(request, body, service.admission.chat, ChatAnswer)

    @app.post("/v1/completions", responses=generated(Completion, _CHUNKS), tags=["generation"])
    async def completions(request: Request, body: CompletionRequest) -> Response:
        """Go on from a text."""
        return await service.generate(request, body, service.admission.completion, CompletionAnswer)

    @app.post(
        "/v1/responses", responses=generated(ResponseObject, _EVENTS, event=_EVENT_NAME), tags=["generation"]
    )
    async def responses(request: Request, body: ResponseRequest) -> Response:
        """Go on from a conversation: OpenAI's newer form, without anything stored."""
        answer = partial(ResponseAnswer, body)
        return await service.generate(request, body, service.admission.response, answer)

    @app.get("/v1/models", response_model=ModelList, responses=ERRORS, tags=["models"])
    async def models() -> ModelList:
        """The one model that is served."""
        return ModelList(data=[service.describe_model()])

    @app.get("/v1/models/{model:path}", response_model=Model, responses=ERRORS, tags=["models"])
    async def model(model: str) -> Model:
        """That model, or a 404."""
        service.admission.check_model(model)
        return service.describe_model()

    timeline_api.install(app, service.requests, engine, kept, config)
    requests_api.install(app, service.requests, engine, exposed=config.gateway.exposed)
    board_api.install(app, Board(engine, service.requests), exposed=config.gateway.exposed)
    pipelines_api.install(app, engine, config, scaler)
    tokenize_api.install(app, service, tokenizer)

    @app.get("/health", tags=["state"])
    async def health() -> Health:
        """Answers while the process lives; /ready says whether it can serve."""
        return Health()

    @app.get("/ready", response_model=Readiness, responses={503: {"model": Readiness}}, tags=["state"])
    async def ready() -> Response:
        """503 with the reason while requests would be refused."""
        is_ready, reason = engine.ready
        if is_ready:
            return JSONResponse({"status": "ready", "reason": None})
        body = {"status": "not ready", "reason": reason}
        return JSONResponse(body, 503, retry_after(RETRY_AFTER_S))

    @app.get(
        "/metrics",
        response_class=PlainTextResponse,
        responses=plain("Prometheus' text format"),
        tags=["state"],
    )
    async def metrics() -> Response:
        """Metrics of all services."""
        return Response(await engine.metrics(), headers={"content-type": CONTENT_TYPE})

    @app.get("/version", tags=["state"])
    async def skipjoin_version() -> Version:
        """Of Skipjoin."""
        return Version(version=app.version)

    web.install(app)
    openapi.install(app, service.model, keys=keyring is not None)
    return app
