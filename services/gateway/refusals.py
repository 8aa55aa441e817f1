"""Every failure as OpenAI's error object: the one place where errors become HTTP."""

import math
import reprlib
from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match

from services.gateway.telemetry import record_of
from shared.errors import (
    DeadlinePassed,
    GenerationFailed,
    InvalidRequest,
    NotReady,
    Overloaded,
    RequestCancelled,
)

RETRY_AFTER_S = 1
_shorten = reprlib.Repr()
_shorten.maxlevel, _shorten.maxstring = 2, 80
_TYPE_TAGS = {"str", "int", "float", "bool", "list", "dict"}
_VALIDATION_CODES = {
    "missing": "missing_field",
    "extra_forbidden": "unknown_field",
    "not_supported": "not_supported",
}
_CODES = {404: "not_found", 405: "method_not_allowed"}


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


_EXPECTED = (
    InvalidRequest,
    NotReady,
    Overloaded,
    DeadlinePassed,
    GenerationFailed,
    ClientGone,
    ClientDisconnect,
)


class ErrorDetail(BaseModel):
    message: str = Field(description="what is wrong: field, value and limit")
    type: str = Field(description="invalid_request_error, server_error, timeout_error, requests or tokens")
    param: str | None = Field(description="the field at fault")
    code: str | None = Field(description="what is wrong, for programs")


class ErrorBody(BaseModel):
    error: ErrorDetail = Field(description="what is wrong")


class Failure(msgspec.Struct, frozen=True):
    """An error as the client sees it.

    outcome: its label in the metrics
    unexpected: a defect of ours, to be logged with its traceback
    """

    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    headers: dict[str, str] = {}
    outcome: str = "refused"
    unexpected: bool = False

    @property
    def cause(self) -> str:
        """For logs and traces: what was refused is named by its code and field, as the message may quote the
        client's text.
        """
        if self.outcome != "refused":
            return self.message
        return f"{self.code}: {self.param}" if self.param else self.code or self.message

    def body(self) -> bytes:
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})


def describe(error: Exception) -> Failure:
    """What to answer when `error` was raised."""
    match error:
        case InvalidRequest():
            return Failure(error.status, error.message, param=error.param, code=error.code)
        case RequestValidationError():
            return _invalid(error.errors())
        case NotReady():
            retry = retry_after(RETRY_AFTER_S)
            return Failure(503, f"not ready: {error}; retry later", "server_error", None, "not_ready", retry)
        case Overloaded():
            retry = retry_after(error.retry_after)
            text = f"{error.message}; retry in {retry['retry-after']} s"
            return Failure(429, text, error.kind, None, error.code, retry)
        case DeadlinePassed():
            # 504: the server was too slow. 408 would say that the client was, and is repeated by browsers and
            # proxies on their own. OpenAI's clients repeat both, unless told not to.
            once = {"x-should-retry": "false"}
            return Failure(
                504, str(error), "timeout_error", "timeout", "deadline_exceeded", once, outcome="timeout"
            )
        case RequestCancelled():  # 499 as for a client that left, which this is a substitute for
            return Failure(499, "the request was cancelled", code="request_cancelled", outcome="abort")
        case GenerationFailed():
            text = f"the generation failed: {error}"
            return Failure(500, text, "server_error", code="generation_failed", outcome="error")
        case ClientGone() | ClientDisconnect():  # 499 as nginx logs it; nobody is left to read it
            return Failure(499, "the client closed the connection", outcome="abort")
        case HTTPException():
            code = _CODES.get(error.status_code)
            return Failure(error.status_code, str(error.detail), code=code, headers=dict(error.headers or {}))
        case _:
            text = "the gateway failed on this request; its log says why"
            return Failure(500, text, "server_error", code="internal_error", outcome="error", unexpected=True)


def retry_after(seconds: float) -> dict[str, str]:
    """The header that asks to wait so long: whole seconds, at least one."""
    return {"retry-after": str(max(1, math.ceil(seconds)))}


def show(value: Any) -> str:
    """A client's value for an error text: short, and not deep, however it is nested."""
    return _shorten.repr(value)


def install(app: FastAPI) -> None:
    """Answer all errors of `app` this way."""

    async def answer(request: Request, error: Exception) -> Response:
        failure = describe(error)
        if failure.status == 405:
            failure = msgspec.structs.replace(failure, headers={"allow": ", ".join(_methods(app, request))})
        if failure.status in (404, 405) and isinstance(error, HTTPException):
            text = f"{request.method} {request.url.path}: {failure.message.lower()}"
            failure = msgspec.structs.replace(failure, message=text)
        record = record_of(request.scope)
        if record is not None:
            record.failed(failure.outcome, failure.cause)
        return Response(failure.body(), failure.status, failure.headers, "application/json")

    app.add_exception_handler(Exception, answer)  # logged by the server too
    for kind in (*_EXPECTED, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, answer)


def _methods(app: FastAPI, request: Request) -> list[str]:
    """What the path can be asked for. The router itself names only the methods of its first route."""
    here = [route for route in app.router.routes if route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for route in here for method in getattr(route, "methods", None) or ()})


def _invalid(errors: Sequence[Any]) -> Failure:
    """Pydantic's findings as one sentence about the first field at fault."""
    field = errors[0]["loc"][:2]
    found = [each for each in errors if each["loc"][:2] == field]
    # The branches of a union report separately; the one that got deepest is the one that was meant.
    depth = max(len(_path(each)) for each in found)
    deepest = [each for each in found if len(_path(each)) == depth]
    path = _path(deepest[0])
    here = [each for each in deepest if _path(each) == path]
    # "must be a string" is no news about a list that is too long.
    here = [each for each in here if not each["type"].endswith("_type")] or here
    said = [_sentence(each) for each in here]
    param = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
    kind = here[0]["type"]
    got = here[0].get("ctx", {}).get("got", here[0].get("input"))
    value = "" if kind in ("missing", "extra_forbidden", "value") else f", got {show(got)}"
    text = f"{param}: {' or '.join(dict.fromkeys(said))}{value}"
    return Failure(400, text, param=param, code=_VALIDATION_CODES.get(kind, "invalid_value"))


def _path(error: Any) -> list[str | int]:
    """Where the error is, without `body` and the names of union branches."""
    path = [
        part
        for part in error["loc"][1:]
        if isinstance(part, int) or (part.isidentifier() and part not in _TYPE_TAGS)
    ]
    named = error.get("ctx", {}).get("param")
    return [*path, named] if named else path


def _sentence(error: Any) -> str:
    match error["type"]:
        case "extra_forbidden":
            return "unknown field"
        case "model_attributes_type":
            return "must be an object"
        case "too_long":
            return f"at most {error['ctx']['max_length']} items are allowed"
    return error["msg"].replace("Input should be", "must be").replace("Field required", "required")
