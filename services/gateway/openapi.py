"""What /openapi.json says beyond the models: every answer with its headers, bodies to try, and keys."""

from functools import cache
from typing import Any

from fastapi import FastAPI

from services.gateway.refusals import ErrorBody

Answers = dict[int | str, dict[str, Any]]

_REQUEST_ID = {
    "X-Request-Id": {
        "description": "names the request in /v1/requests: the client's own, or one made up here",
        "schema": {"type": "string"},
    }
}
_RETRY_AFTER = {
    "Retry-After": {
        "description": "when it is worth another try, seconds from now",
        "schema": {"type": "integer", "minimum": 1},
    }
}


_TURNS = [{"role": "user", "content": "What is the capital of France?"}]
_EXAMPLES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": _TURNS, "max_tokens": 30, "temperature": 0},
    "/v1/completions": {"prompt": "Once upon a time", "max_tokens": 30, "temperature": 0},
    "/v1/responses": {"input": "What is the capital of France?", "max_output_tokens": 30, "temperature": 0},
    "/tokenize": {"messages": _TURNS, "return_token_strs": True},
    "/detokenize": {"tokens": [1, 2, 3]},
}
"""Bodies to try, but for the model."""


def _error(description: str, **headers: Any) -> dict[str, Any]:
    return {"model": ErrorBody, "description": description, "headers": _REQUEST_ID | headers}


ERRORS: Answers = {
    "4XX": _error("refused: the error names field, value and limit"),
    "5XX": _error("the server failed"),
}
"""Of every endpoint under /v1."""

GENERATION_ERRORS: Answers = ERRORS | {
    429: _error("too much is unfinished here, or of this key", **_RETRY_AFTER),
    499: _error("it was cancelled by its id"),
    503: _error("loading or shutting down", **_RETRY_AFTER),
    504: _error("`timeout` was over before the answer was complete"),
}


def generated(whole: type[Any], data: str, **events: Any) -> Answers:
    """An answer is one object, or with stream: true a stream of server-sent events.

    data: describes their data; events: schema of their `event`, if they have one
    """
    event = {
        "type": "object",
        "required": ["data", *events],
        "properties": {"data": {"type": "string", "description": data}, **events},
    }
    stream = {"text/event-stream": {"itemSchema": event}}
    return {
        200: {
            "model": whole,
            "description": "the answer, whole or streamed",
            "content": stream,
            "headers": _REQUEST_ID,
        },
        **GENERATION_ERRORS,
    }


def plain(description: str, media_type: str = "text/plain") -> Answers:
    return {200: {"description": description, "content": {media_type: {"schema": {"type": "string"}}}}}


def install(app: FastAPI, model: str, *, keys: bool) -> None:
    """`app.openapi()` gives the finished document. The first call takes 0.3 s.

    model: the only name that is served; keys: an API key is needed
    """
    raw = app.openapi
    app.openapi = cache(lambda: _finished(raw(), model, keys=keys))


def _finished(document: dict[str, Any], model: str, *, keys: bool) -> dict[str, Any]:
    for schema in document["components"]["schemas"].values():
        name = schema.get("properties", {}).get("model")
        if name is not None:
            text = next(iter(name.get("anyOf", ())), name)
            text["enum"] = [model]
    for path, body in _EXAMPLES.items():
        content = document["paths"][path]["post"]["requestBody"]["content"]
        content["application/json"]["example"] = {"model": model, **body}
    if keys:
        bearer = {"type": "http", "scheme": "bearer", "description": "an API key, made by `skipjoin key`"}
        document["components"]["securitySchemes"] = {"key": bearer}
        for path, operations in document["paths"].items():
            for operation in operations.values():
                if path not in ("/health", "/ready"):
                    operation["security"] = [{"key": []}]
                    operation["responses"]["401"] = {
                        "description": "no key, or one not known here",
                        "content": {
                            "application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}
                        },
                    }
    return document
