"""One request over HTTP, streamed, with every arrival on the clock."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import aiohttp
import msgspec

from loadgen.bench import events
from loadgen.bench.record import OK, Record
from loadgen.bench.settings import Target
from shared.errors import ConfigError

REQUEST_ID = "X-Request-Id"
DETAIL = 500
"""Characters of an error's text that are kept."""


class Endpoint(msgspec.Struct, frozen=True):
    """What is known of a server after asking it.

    url: base, without /v1; extras: fields of every request that it takes
    ignore_eos, token_ids: whether it takes them
    """

    url: str
    model: str
    api: str
    ignore_eos: bool
    token_ids: bool
    extras: dict[str, Any] = {}

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.api == "chat" else "/v1/completions"

    def body(self, prompt: "str | list[dict[str, str]]", output: int, tenant: str = "") -> bytes:
        """prompt: text, or messages; output: tokens"""
        said = {"messages": prompt} if isinstance(prompt, list) else {"prompt": prompt}
        fields: dict[str, Any] = {
            "model": self.model,
            **said,
            "max_tokens": output,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.ignore_eos:
            fields["ignore_eos"] = True
        if self.token_ids:
            fields["return_token_ids"] = True
        if tenant:
            fields["user"] = tenant
        return msgspec.json.encode(fields | self.extras)


@contextlib.asynccontextmanager
async def session(url: str, target: Target) -> AsyncIterator[aiohttp.ClientSession]:
    """Connections without a limit of their own: waiting there would be hidden from the schedule."""
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    if target.key_variable is not None:
        key = os.environ.get(target.key_variable)
        if key is None:
            raise ConfigError(f"key_variable: the environment has no {target.key_variable}")
        headers["Authorization"] = f"Bearer {key}"
    tracing = aiohttp.TraceConfig()
    tracing.on_request_headers_sent.append(_note_sent)
    async with aiohttp.ClientSession(
        base_url=url,
        headers=headers,
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=30),
        trace_configs=[tracing],
    ) as opened:
        yield opened


async def _note_sent(
    _: aiohttp.ClientSession, context: SimpleNamespace, __: aiohttp.TraceRequestHeadersSentParams
) -> None:
    if isinstance(context.trace_request_ctx, _Exchange):
        context.trace_request_ctx.note_sent()


class Client:
    """Sends requests of one run. began: what its times count from, on `time.perf_counter`

    The event loop's own clock is not used: uvloop's stands still within an iteration and counts milliseconds.
    """

    def __init__(self, http: aiohttp.ClientSession, endpoint: Endpoint, timeout_s: float) -> None:
        self._http, self._endpoint, self._timeout_s = http, endpoint, timeout_s
        self.began = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self.began

    async def ask(self, record: Record, prompt: "str | list[dict[str, str]]") -> str:
        """Fill in the record, whatever happens; returns the answer's text. Raises CancelledError only."""
        exchange = _Exchange(record, self.began)
        body = self._endpoint.body(prompt, record.asked_output, record.tenant)
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._http.post(self._endpoint.path, data=body, trace_request_ctx=exchange) as response,
            ):
                record.status = response.status
                record.request_id = response.headers.get(REQUEST_ID)
                if response.status != 200:
                    record.outcome = "429" if response.status == 429 else f"http {response.status}"
                    record.detail = (await response.text(errors="replace"))[:DETAIL]
                    return ""
                async for received in response.content.iter_any():
                    exchange.receive(received)
                exchange.close()
        except TimeoutError:
            record.outcome = "timeout"
        except msgspec.DecodeError as error:
            record.outcome, record.detail = "protocol", str(error)[:DETAIL]
        except aiohttp.ClientError as error:
            record.outcome, record.detail = "connection", f"{type(error).__name__}: {error}"[:DETAIL]
        return "".join(exchange.said)


class _Exchange:
    """Reads one stream into its record."""

    def __init__(self, record: Record, began: float) -> None:
        self._record, self._began = record, began
        self._lines = events.Lines()
        self._done = False
        self._tokens: list[int] | None = []
        self.said: list[str] = []

    def note_sent(self) -> None:
        self._record.sent = round(time.perf_counter() - self._began, 6)

    def receive(self, received: bytes) -> None:
        """Events that arrive together are one chunk: their reader sees them at once."""
        now = round(time.perf_counter() - self._began, 6)
        told = False
        tokens = 0
        for data in self._lines.feed(received):
            if data == events.DONE:
                self._done = True
                continue
            event = events.decode(data)
            self._read_rest(event, now)
            for choice in event.choices:
                if choice.tells:
                    told = True
                    self.said.append(choice.said)
                    if choice.token_ids is None:
                        self._tokens = None
                    tokens += len(choice.token_ids or ())
        record = self._record
        if told:
            record.first = now if record.first is None else record.first
            record.end = now
            record.arrivals.append(now)
            if self._tokens is not None:
                self._tokens.append(tokens)

    def _read_rest(self, event: events.Event, now: float) -> None:
        """What an event has besides the answer's text."""
        record = self._record
        for choice in event.choices:
            if choice.finish_reason is not None:
                record.finish, record.end = choice.finish_reason, now
        if event.usage is not None:
            record.prompt, record.output = event.usage.prompt_tokens, event.usage.completion_tokens
            details = event.usage.prompt_tokens_details
            record.cached = details.cached_tokens if details is not None else None
        if event.error is not None:
            record.outcome = "stream error"
            record.detail = msgspec.json.encode(event.error).decode()[:DETAIL]

    def close(self) -> None:
        """The stream has ended in order; whether the answer is complete is another question."""
        record = self._record
        record.chunk_tokens = self._tokens
        if record.output is not None:
            record.counted_by = "usage"
        elif self._tokens is not None:
            record.output, record.counted_by = sum(self._tokens), "token_ids"
        else:
            record.output, record.counted_by = len(record.arrivals), "chunks"
        if record.outcome == "stream error":
            return
        if record.finish is None and not self._done:
            record.outcome, record.detail = "truncated", "the stream ended without a finish_reason"
        elif record.first is None:
            record.outcome, record.detail = "empty", "the answer has no text"
        else:
            record.outcome = OK
