"""Who asks: the middleware that lets only holders of a key in, before anything of the body is read."""

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from services.gateway.keys import Access, Keyring
from services.gateway.refusals import describe
from services.gateway.telemetry import record_of
from shared.errors import InvalidRequest

OPEN_PATHS = frozenset({"/health", "/ready", "/", "/board", "/timeline", "/docs"})
"""Whoever restarts or routes around a gateway has no key, nor has a browser before its reader typed it in."""
_OPEN_FOLDERS = ("/pages/", "/swagger/")
"""Files of those pages."""
_KEY = "skipjoin.access"


class AccessControl:
    """ASGI middleware; it stands inside of the telemetry, so that refusals are seen there."""

    def __init__(self, app: ASGIApp, keyring: Keyring) -> None:
        self._app = app
        self._keyring = keyring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not _is_open(scope["path"]):
            access = self._keyring.find(_offered(scope))
            if access is None:
                await _refuse(scope, receive, send)
                return
            scope[_KEY] = access
        await self._app(scope, receive, send)


def access_of(scope: Scope) -> Access | None:
    """The key that a request came with; None where no keys are configured."""
    return scope.get(_KEY)


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(_OPEN_FOLDERS)


def _offered(scope: Scope) -> str:
    given = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
    kind, _, key = given.partition(" ")
    return key.strip() if kind.lower() == "bearer" else ""


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    failure = describe(
        InvalidRequest(
            "the API key is missing or not known here; send it as Authorization: Bearer KEY",
            code="invalid_api_key",
            status=401,
        )
    )
    record = record_of(scope)
    if record is not None:
        record.failed(failure.outcome, failure.cause)
    headers = {"www-authenticate": "Bearer"}
    await Response(failure.body(), failure.status, headers, "application/json")(scope, receive, send)
