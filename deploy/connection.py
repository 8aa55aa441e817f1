"""Where the commands that ask a running server find it, and what they say when they do not."""

import argparse
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import msgspec

from shared.errors import SkipjoinError

URL = "http://127.0.0.1:8000"
_PATIENCE = httpx.Timeout(10.0, read=None)
"""An answer may take long to begin: it is the server that knows when to give up. Seconds."""

_PATIENCE_WATCHING = httpx.Timeout(5.0)


class Refused(SkipjoinError):
    """The server could not be reached or did not do what it was asked; the message says why.

    status: of HTTP; None: there was no answer
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


def add_connection_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--url",
        default=os.environ.get("SKIPJOIN_URL", URL),
        help=f"of the server (default: $SKIPJOIN_URL, or {URL})",
    )
    command.add_argument(
        "--api-key",
        default=os.environ.get("SKIPJOIN_API_KEY"),
        metavar="KEY",
        help="where the server asks for one (default: $SKIPJOIN_API_KEY, which other users of the machine do "
        "not see)",
    )


class Connection:
    """A server, by the options of a command."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.url: str = options.url.rstrip("/").removesuffix("/v1")
        headers = {"authorization": f"Bearer {options.api_key}"} if options.api_key else {}
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=_PATIENCE)

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """The JSON of the answer. Raises Refused."""
        with self._failures():
            answer = self._http.request(method, path, json=body)
            _check(answer)
            return answer.json()

    def stream(self, path: str, body: dict[str, Any]) -> Generator[dict[str, Any]]:
        """The chunks of an answer; closing the generator ends it at the server. Raises Refused."""
        return self._events("POST", path, body | {"stream": True}, _PATIENCE)

    def watch(self, path: str) -> Generator[dict[str, Any]]:
        """Events of a stream that has several a second, until the server ends it. Raises Refused."""
        return self._events("GET", path, None, _PATIENCE_WATCHING)

    def _events(
        self, method: str, path: str, body: dict[str, Any] | None, patience: httpx.Timeout
    ) -> Generator[dict[str, Any]]:
        with (
            self._failures(),
            self._http.stream(method, path, json=body, timeout=patience) as answer,
        ):
            if answer.status_code != 200:
                answer.read()
            _check(answer)
            for line in answer.iter_lines():
                data = line.removeprefix("data: ")
                if data == line or data == "[DONE]":
                    continue
                chunk = msgspec.json.decode(data)
                if "error" in chunk:
                    raise Refused(chunk["error"]["message"])
                yield chunk

    def model(self) -> str:
        """The one that is served. Raises Refused."""
        return self.ask("GET", "/v1/models")["data"][0]["id"]

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except httpx.ConnectError:
            raise Refused(
                f"nothing answers at {self.url}: start it with `skipjoin serve`, or name it with --url"
            ) from None
        except httpx.InvalidURL as error:
            raise Refused(f"--url {self.url!r}: {error}") from None
        except httpx.HTTPError as error:
            raise Refused(f"{self.url}: {error or type(error).__name__}") from None


def _check(answer: httpx.Response) -> None:
    if answer.is_success:
        return
    try:
        message = msgspec.json.decode(answer.content)["error"]["message"]
    except (msgspec.DecodeError, KeyError, TypeError):
        message = f"HTTP {answer.status_code} {answer.reason_phrase}: is that a Skipjoin server?"
    if answer.status_code == 401:
        message += " (--api-key or $SKIPJOIN_API_KEY)"
    raise Refused(message, answer.status_code)
