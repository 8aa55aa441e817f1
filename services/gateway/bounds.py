"""What one request may ask for beyond the model's own limits: choices, prompt tokens, headers."""

from collections.abc import Sequence

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from services.gateway.admission import Job
from services.gateway.refusals import describe
from services.gateway.telemetry import record_of
from shared.config import GatewayConfig
from shared.errors import InvalidRequest


def check_choices(n: int, config: GatewayConfig) -> None:
    """Before anything is tokenised. Raises InvalidRequest."""
    if n > config.max_choices:
        raise InvalidRequest(
            f"n: at most {config.max_choices} answers are made per request (gateway.max_choices), got {n}",
            param="n",
        )


def check_jobs(jobs: Sequence[Job], n: int, param: str, config: GatewayConfig) -> None:
    """param: the field that holds the prompt. Raises InvalidRequest."""
    if len(jobs) > config.max_choices:
        raise InvalidRequest(
            f"{param}: {len(jobs) // n} prompts and n = {n} make {len(jobs)} answers; at most "
            f"{config.max_choices} are made per request (gateway.max_choices)",
            param=param,
        )
    limit = config.max_prompt_tokens
    longest = max(len(job.submit.prompt) for job in jobs)
    if limit is not None and longest > limit:
        raise InvalidRequest(
            f"{param}: {longest} tokens; at most {limit} are taken here (gateway.max_prompt_tokens)",
            param=param,
            code="context_length_exceeded",
        )


class HeaderLimit:
    """ASGI middleware: larger headers are refused with 431."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = sum(len(name) + len(value) + 4 for name, value in scope.get("headers", ()))
        if size <= self._limit:
            await self._app(scope, receive, send)
            return
        failure = describe(
            InvalidRequest(
                f"the headers have {size} bytes, at most {self._limit} are taken (gateway.max_header_bytes)",
                code="headers_too_large",
                status=431,
            )
        )
        record = record_of(scope)
        if record is not None:
            record.failed(failure.outcome, failure.cause)
        await Response(failure.body(), failure.status, media_type="application/json")(scope, receive, send)
