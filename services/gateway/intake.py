"""Reading a request body: bounded, and strict JSON, before any model sees it."""

import json
import re
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from shared.errors import InvalidRequest

_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class _JSONRequest(Request):
    """A request whose body was read and parsed already."""

    def __init__(self, request: Request, raw: bytes, parsed: dict[str, Any]) -> None:
        super().__init__(request.scope, request.receive)
        self._raw = raw
        self._parsed = parsed

    async def body(self) -> bytes:
        return self._raw

    async def json(self) -> dict[str, Any]:
        return self._parsed


def json_route(max_body_bytes: int) -> type[APIRoute]:
    """The route class of an app whose request bodies may have up to `max_body_bytes`."""

    class JSONRoute(APIRoute):
        def get_route_handler(self) -> Handler:
            handle = super().get_route_handler()

            async def strict(request: Request) -> Response:
                if self.body_field is None:
                    return await handle(request)
                raw = await read(request, max_body_bytes)
                return await handle(_JSONRequest(request, raw, parse(raw)))

            return strict

    return JSONRoute


async def read(request: Request, limit: int) -> bytes:
    """The body. Raises InvalidRequest if it has more than `limit` bytes or is not declared as JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise InvalidRequest(
            f"content-type: {kind[:100]!r} is not supported; send application/json",
            code="unsupported_media_type",
            status=415,
        )
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(limit)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise _too_large(limit)
    return bytes(body)


def parse(raw: bytes) -> dict[str, Any]:
    """The JSON object in `raw`.

    Raises InvalidRequest for anything else, for NaN and Infinity, which JSON does not have, and for half of a
    surrogate pair, which is no character and can be neither tokenised nor sent back.
    """
    if not raw.strip():
        raise _malformed("the body is empty")
    try:
        text = raw.decode("utf-8-sig")
        parsed = json.loads(text, parse_constant=_no_constant)
        if _ESCAPED_SURROGATE.search(text):
            _refuse_lone_surrogates(parsed, "")
    except json.JSONDecodeError as error:
        raise _malformed(f"{error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise _malformed("it is nested too deeply") from None
    except ValueError as error:  # not UTF-8, or an integer of thousands of digits
        raise _malformed(str(error)) from None
    if not isinstance(parsed, dict):
        raise _malformed("it must be an object")
    return parsed


def _refuse_lone_surrogates(value: Any, path: str) -> None:
    match value:
        case str() if _LONE_SURROGATE.search(value):
            raise InvalidRequest(
                f"{path}: it holds half of a surrogate pair, which is no character", param=path
            )
        case dict():
            for key, each in value.items():
                _refuse_lone_surrogates(key, "a field's name")
                _refuse_lone_surrogates(each, f"{path}.{key}".lstrip("."))
        case list():
            for i, each in enumerate(value):
                _refuse_lone_surrogates(each, f"{path}[{i}]")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


def _malformed(reason: str) -> InvalidRequest:
    return InvalidRequest(f"the body is not valid JSON: {reason}", code="invalid_json")


def _too_large(limit: int) -> InvalidRequest:
    return InvalidRequest(
        f"the body is larger than {limit} bytes (gateway.max_body_bytes)",
        code="request_too_large",
        status=413,
    )
