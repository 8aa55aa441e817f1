"""What a request leaves behind: a span, its metrics, and open requests counted down whatever happens."""

import re
import secrets
import time
from collections.abc import Sequence
from contextlib import ExitStack

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, set_span_in_context
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway.choices import Choices
from services.gateway.request_log import RequestLog
from services.gateway.schema import REQUEST_ID
from shared.ids import JobId
from shared.messages import Submit
from shared.metrics import Registry
from shared.tracing import context_of, traceparent_of

_KEY = "skipjoin.record"
_REQUESTS = "/v1/requests"
_GENERATE = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses"})
_REQUEST_ID = re.compile(REQUEST_ID)


class GatewayMetrics:
    def __init__(self, registry: Registry) -> None:
        self.requests = registry.counter(
            "skipjoin_requests",
            "Requests that ended, by how: stop, length, abort (the client left), refused or error.",
            ["endpoint", "outcome", "status"],
        )
        self.open = registry.gauge("skipjoin_open_requests", "Requests that are being served.")
        self.first_token = registry.histogram(
            "skipjoin_time_to_first_token_seconds", "From a request's arrival to its first token."
        )
        self.inter_token = registry.histogram(
            "skipjoin_inter_token_seconds", "Between the tokens of one request, as they arrive here."
        )
        self.seconds = registry.histogram(
            "skipjoin_request_seconds", "From a request's arrival to its end.", ["endpoint"]
        )


class RequestRecord:
    """One request from arrival to end.

    traceparent: W3C context below which other services continue the trace; None if it is not recorded
    request_id: sent back as X-Request-Id
    held: what is given back at its end, however it comes
    """

    def __init__(
        self,
        method: str,
        endpoint: str,
        request_id: str,
        span: Span,
        tracer: Tracer,
        metrics: GatewayMetrics,
        model: str,
    ) -> None:
        self.request_id = request_id
        self.endpoint = endpoint
        self.arrived = time.perf_counter()
        self.traceparent = traceparent_of(span)
        self.status = 0
        self.held = ExitStack()
        self._span = span
        self._tracer = tracer
        self._metrics = metrics
        self._model = model
        self._last_token: dict[int, float] = {}
        self._outcome: str | None = None
        self._cause: str | None = None
        self._tokens = 0
        self._submitted: tuple[Sequence[JobId], int, list[str] | None] = ((), 0, None)
        self.log = RequestLog(method, endpoint, span, generates=method == "POST" and endpoint in _GENERATE)

    @property
    def waited(self) -> float:
        """Seconds since arrival."""
        return time.perf_counter() - self.arrived

    def child(self, name: str, seconds: float) -> None:
        """Report a span that took `seconds` of computing and ended now."""
        now = time.time_ns()
        start = now - round(seconds * 1e9)
        context = set_span_in_context(self._span, Context())
        self._tracer.start_span(name, context, start_time=start).end(now)

    def submits(self, jobs: Sequence[JobId], prompt_tokens: int, prompts: list[str] | None) -> None:
        """prompts: their text, if it is to be logged"""
        self._submitted = (jobs, prompt_tokens, prompts)

    def accepted(self) -> None:
        """A scheduler has taken all that it submits."""
        self.log.accepted(self.request_id, self.waited, *self._submitted)

    def generates(
        self, submit: Submit, stops: Sequence[str], *, choices: int, stream: bool, answer: str
    ) -> None:
        """What is asked of the model, by OpenTelemetry's conventions for generative AI. answer: its id"""
        sampling = submit.sampling
        attributes: dict[str, str | int | float | bool | Sequence[str]] = {
            "gen_ai.operation.name": "text_completion" if self.endpoint == "/v1/completions" else "chat",
            "gen_ai.output.type": "text" if submit.grammar is None else "json",
            "gen_ai.request.max_tokens": submit.max_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.seed": sampling.seed,
            "gen_ai.request.presence_penalty": sampling.presence_penalty,
            "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
            "gen_ai.request.stream": stream,
            "gen_ai.response.id": answer,
            "gen_ai.response.model": self._model,
            "skipjoin.request.id": self.request_id,
        }
        if sampling.top_k:
            attributes["gen_ai.request.top_k"] = sampling.top_k
        if choices > 1:
            attributes["gen_ai.request.choice.count"] = choices
        if stops:
            attributes["gen_ai.request.stop_sequences"] = list(stops)
        self._span.set_attributes(attributes)

    def note_tokens(self, count: int, choice: int) -> None:
        """`count` tokens of this choice have just arrived."""
        if not count:
            return
        now = time.perf_counter()
        self._tokens += count
        if not self._last_token:
            self.log.first_token(self.request_id, now - self.arrived)
            self._metrics.first_token.observe(now - self.arrived)
            self._span.set_attribute("gen_ai.response.time_to_first_chunk", now - self.arrived)
        elif choice in self._last_token:
            self._metrics.inter_token.observe((now - self._last_token[choice]) / count)
        self._last_token[choice] = now

    def answered(self, choices: Choices) -> None:
        self._outcome = "length" if "length" in choices.finishes else "stop"
        self._span.set_attributes(
            {
                "gen_ai.usage.input_tokens": choices.prompt_tokens,
                "gen_ai.usage.output_tokens": choices.completion_tokens,
                "gen_ai.usage.cache_read.input_tokens": choices.cached_tokens,
                "gen_ai.response.finish_reasons": choices.finishes,
            }
        )
        self.child("detokenize", choices.detokenize_s)

    def failed(self, outcome: str, cause: str) -> None:
        """cause: without the client's own text, which may be its prompt's"""
        self._outcome, self._cause = outcome, cause
        self._span.set_attribute("error.type", outcome)
        self._span.set_status(StatusCode.ERROR, cause)

    def end(self) -> None:
        if self._outcome is None:  # answered without generating
            self._outcome = "ok"
        self._metrics.requests.labels(self.endpoint, self._outcome, str(self.status)).inc()
        seconds = self.waited
        self._metrics.seconds.labels(self.endpoint).observe(seconds)
        self.log.ended(self.request_id, self._outcome, self.status, seconds, self._tokens, self._cause)
        if self.status:
            self._span.set_attribute("http.response.status_code", self.status)
        self._span.end()


class Telemetry:
    """ASGI middleware around the endpoints under /v1: opens and closes each request's record."""

    def __init__(
        self, app: ASGIApp, tracer: Tracer, metrics: GatewayMetrics, model: str, endpoints: frozenset[str]
    ) -> None:
        self._app = app
        self._tracer = tracer
        self._metrics = metrics
        self._model = model
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        record = self._open(scope)

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                own = (b"x-request-id", record.request_id.encode())
                message = {**message, "headers": [*message.get("headers", ()), own]}
            await send(message)

        self._metrics.open.inc()
        try:
            await self._app(scope, receive, noting)
        except Exception as error:
            record.failed("error", type(error).__name__)
            record.status = record.status or 500  # sent further outside, after this
            raise
        except BaseException:  # cancelled from outside: the server stops, or Ray Serve saw the client leave
            record.failed("abort", "the request was cancelled")
            raise
        finally:
            self._metrics.open.dec()
            record.held.close()
            record.end()

    def _open(self, scope: Scope) -> RequestRecord:
        # Unknown paths share one label, so that clients cannot make metrics grow.
        path = _REQUESTS if scope["path"].startswith(_REQUESTS + "/") else scope["path"]
        endpoint = path if path in self._endpoints else "other"
        headers = dict(scope["headers"])
        parent = headers.get(b"traceparent", b"").decode("latin-1") or None
        span = self._tracer.start_span(
            f"{scope['method']} {endpoint}",
            context_of(parent),
            kind=SpanKind.SERVER,
            attributes={
                "http.request.method": scope["method"],
                "url.path": scope["path"],
                "gen_ai.provider.name": "skipjoin",
                "gen_ai.request.model": self._model,
            },
        )
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        request_id = given if _REQUEST_ID.fullmatch(given) else f"req-{secrets.token_hex(12)}"
        record = RequestRecord(
            scope["method"], endpoint, request_id, span, self._tracer, self._metrics, self._model
        )
        scope[_KEY] = record
        return record


def record_of(scope: Scope) -> RequestRecord | None:
    """The record of this request; None outside of /v1."""
    return scope.get(_KEY)
