"""Pages for people: a chat at `/`, the live board at `/board`, what requests went through at `/timeline`, the
API's description at `/docs`. All their files come from here.

They hold no secret and are served without a key; what they show they ask the API for, with the key that
their reader types in.
"""

from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

_PAGES = Path(str(files("services.gateway") / "pages"))
_SWAGGER = Path(str(files("fastapi_offline") / "static"))

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_DOCS_POLICY = _POLICY.replace("style-src 'self'", "style-src 'self' 'unsafe-inline'")
"""Swagger UI writes style attributes."""
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # asks each time whether the file changed, so that an update shows
}


class _Files(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(_HEADERS)
        return response


def install(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    async def chat() -> Response:
        return _page("index.html", _POLICY)

    @app.get("/board", include_in_schema=False)
    async def board() -> Response:
        return _page("board/index.html", _POLICY)

    @app.get("/timeline", include_in_schema=False)
    async def timeline() -> Response:
        return _page("timeline/index.html", _POLICY)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return _page("docs.html", _DOCS_POLICY)

    app.mount("/pages", _Files(directory=_PAGES))
    app.mount("/swagger", _Files(directory=_SWAGGER))


def _page(name: str, policy: str) -> Response:
    return FileResponse(_PAGES / name, headers=_HEADERS | {"content-security-policy": policy})
