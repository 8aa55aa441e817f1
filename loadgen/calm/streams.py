"""Many streams at once, in a process of their own so that reading them delays no measurement; and probes."""

import asyncio
import json
import multiprocessing
import time
from collections import Counter
from multiprocessing.synchronize import Event
from typing import Any, NamedTuple, Self

import aiohttp

from shared.errors import SkipjoinError

_spawn = multiprocessing.get_context("spawn")
FOREVER = 20_000
"""Tokens of a stream that is closed when nobody needs it any more."""


class Load(NamedTuple):
    """That many streams of `tokens` tokens each.

    url: base, without /v1; begun: how many must have had a token before anything else happens
    """

    url: str
    model: str
    streams: int
    tokens: int
    begun: int = 0


class Ended(NamedTuple):
    """outcomes: how many of the streams ended how: `complete`, `429`, or what else went wrong
    tokens: that all of them received
    """

    outcomes: dict[str, int]
    tokens: int


class NotBegun(SkipjoinError):
    """Streams that were to run beside a measurement have ended before it."""


class Streams:
    """A context, whose streams run when it is entered. Entering raises NotBegun."""

    def __init__(self, load: Load) -> None:
        self._going, self._over = _spawn.Event(), _spawn.Event()
        self._results: Any = _spawn.SimpleQueue()
        arguments = (load, self._going, self._over, self._results)
        self._process = _spawn.Process(target=_play, args=arguments, daemon=True)

    async def __aenter__(self) -> Self:
        self._process.start()
        await asyncio.to_thread(self._going.wait)
        if not self._results.empty():
            ended = await self.ended()
            await self.__aexit__()
            raise NotBegun(f"streams have ended: {ended.outcomes}")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        await asyncio.to_thread(self._process.join)

    async def ended(self) -> Ended:
        """Waits until all have."""
        return await asyncio.to_thread(self._results.get)


def _play(load: Load, going: Event, over: Event, results: Any) -> None:
    asyncio.run(_Player(load, going).play(over, results))


class _Player:
    """In the process of the streams."""

    def __init__(self, load: Load, going: Event) -> None:
        self._load, self._going = load, going
        self._outcomes: Counter[str] = Counter()
        self._started = self._tokens = 0
        self._failed = asyncio.Event()

    async def play(self, over: Event, results: Any) -> None:
        if not self._load.begun:
            self._going.set()
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=600)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
            streams = [asyncio.create_task(self._stream(http, index)) for index in range(self._load.streams)]
            everything = asyncio.gather(*streams, return_exceptions=True)
            stopped = asyncio.create_task(asyncio.to_thread(over.wait))
            failed = asyncio.create_task(self._failed.wait())
            await asyncio.wait([everything, stopped, failed], return_when=asyncio.FIRST_COMPLETED)
            if not stopped.done():
                results.put(Ended(dict(self._outcomes), self._tokens))
            self._going.set()
            await stopped
            failed.cancel()
            for stream in streams:
                stream.cancel()
            await everything

    async def _stream(self, http: aiohttp.ClientSession, index: int) -> None:
        try:
            outcome = await self._outcome(http, index)
        except aiohttp.ClientError as error:
            outcome = type(error).__name__
        self._outcomes[outcome] += 1
        if self._load.begun:  # it was to go on
            self._failed.set()

    async def _outcome(self, http: aiohttp.ClientSession, index: int) -> str:
        body = _body(self._load.model, f"Story {index}.", self._load.tokens)
        ids, last = 0, b""
        async with http.post(f"{self._load.url}/v1/completions", json=body) as answer:
            if answer.status != 200:
                return str(answer.status)
            async for line in answer.content:
                if line.startswith(b"data: "):
                    last = line
                if line.startswith(b"data: {") and b'"error"' not in line:
                    if not ids:
                        self._note_start()
                    new = len(json.loads(line[6:])["choices"][0]["token_ids"])
                    ids += new
                    self._tokens += new
        return "complete" if last == b"data: [DONE]\n" and ids == self._load.tokens else "cut"

    def _note_start(self) -> None:
        self._started += 1
        if self._started == self._load.begun:
            self._going.set()


def _body(model: str, prompt: str, tokens: int, **fields: Any) -> dict[str, Any]:
    asked = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return asked | {"stream": True, "return_token_ids": True} | fields


async def probe(http: aiohttp.ClientSession, url: str, model: str, tenant: str) -> tuple[float, float]:
    """When a request was sent and when its first token was there, seconds of `time.perf_counter`."""
    body = json.dumps(_body(model, "And then?", 2, user=tenant)).encode()
    headers = {"content-type": "application/json"}
    sent = time.perf_counter()
    first: float | None = None
    async with http.post(f"{url}/v1/completions", data=body, headers=headers) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if first is None and line.startswith(b"data: {"):
                first = time.perf_counter()
    assert first is not None, "an answer without a token"
    return sent, first
