"""What a server is and takes, found out by asking it: model, fields that it knows, how it counts tokens."""

import asyncio
from typing import Any

import aiohttp
import msgspec

from loadgen.bench.client import DETAIL, Client, Endpoint
from loadgen.bench.prompts import Counter, FileCounter, Prompts, WordCounter, learn
from loadgen.bench.record import OK, Record
from loadgen.bench.settings import Target
from shared.errors import SkipjoinError

PROBED = (24, 40, 72, 136)
"""Prompts whose tokens are compared with the server's count."""

UNKNOWN_FIELD = (400, 422)
"""How servers refuse a field that they do not know."""

QUICK = aiohttp.ClientTimeout(total=30)
"""For what takes no model."""

ANSWER_S = 300.0
"""Some load their model at the first request."""


class ProbeError(SkipjoinError):
    """The server cannot be benchmarked as configured."""


class Found(msgspec.Struct):
    """prompts: makes text for it; notes: facts for the result file"""

    endpoint: Endpoint
    prompts: Prompts
    notes: dict[str, Any]


async def probe(http: aiohttp.ClientSession, url: str, target: Target) -> Found:
    """Raises ProbeError with the server's words if it does not answer."""
    model = target.model or await _first_model(http, url)
    endpoint = await _accepted(http, url, target, model)
    vocabulary = await learn(await _counter(http, endpoint, target))
    prompts = Prompts(vocabulary)
    notes: dict[str, Any] = {
        "model": model,
        "api": endpoint.api,
        "ignore_eos": endpoint.ignore_eos,
        "token_ids": endpoint.token_ids,
        "counted_by": vocabulary.counter,
    }
    return Found(endpoint, prompts, notes | await _calibrate(http, endpoint, prompts))


async def _first_model(http: aiohttp.ClientSession, url: str) -> str:
    text = ""
    try:
        async with http.get("/v1/models", timeout=QUICK) as response:
            text = await response.text()
            return msgspec.json.decode(text)["data"][0]["id"]
    except (aiohttp.ClientError, TimeoutError) as error:
        raise ProbeError(f"{url}: no answer ({type(error).__name__}: {error})") from None
    except (msgspec.DecodeError, LookupError, TypeError):
        raise ProbeError(
            f"{url}/v1/models: names no model ({text[:DETAIL]!r}); set `model`, and check that the url is "
            "without /v1"
        ) from None


async def _accepted(http: aiohttp.ClientSession, url: str, target: Target, model: str) -> Endpoint:
    """With those of the two fields that the server takes; one that the target insists on must be taken."""
    either = {None: (True, False), True: (True,), False: (False,)}
    refusal = ""
    for ignore_eos in either[target.ignore_eos]:
        for token_ids in either[target.token_ids]:
            endpoint = Endpoint(url, model, target.api, ignore_eos, token_ids, target.body)
            record = await _one(http, endpoint, "The sea is", 2)
            if record.status not in UNKNOWN_FIELD:
                if record.outcome not in (OK, "empty"):
                    raise ProbeError(f"{url}: a first request failed: {record.outcome} {record.detail}")
                return endpoint
            refusal = record.detail
    raise ProbeError(f"{url}: a first request was refused: {refusal}")


async def _one(http: aiohttp.ClientSession, endpoint: Endpoint, text: str, output: int) -> Record:
    record = Record(0, "probe", "", 0, 0, 0, output, 0.0)
    prompt = [{"role": "user", "content": text}] if endpoint.api == "chat" else text
    await Client(http, endpoint, ANSWER_S).ask(record, prompt)
    return record


async def _counter(http: aiohttp.ClientSession, endpoint: Endpoint, target: Target) -> Counter:
    if target.tokenizer is not None:
        return FileCounter(target.tokenizer)
    for field in ("prompt", "content"):  # vLLM, SGLang and Skipjoin; llama.cpp
        counter = _ServerCounter(http, endpoint.model, field)
        try:
            if await counter.count("The sea") > 0:
                return counter
        except ProbeError:
            continue
    return WordCounter()


class _ServerCounter:
    """By the server's own /tokenize."""

    def __init__(self, http: aiohttp.ClientSession, model: str, field: str) -> None:
        self._http, self._model, self._field = http, model, field
        self.name = f"/tokenize ({field})"

    async def count(self, text: str) -> int:
        body = msgspec.json.encode(
            {"model": self._model, self._field: text}
            | ({"add_special_tokens": False} if self._field == "prompt" else {})
        )
        try:
            async with self._http.post("/tokenize", data=body, timeout=QUICK) as response:
                if response.status != 200:
                    raise ProbeError(f"/tokenize: {response.status}")
                return len(msgspec.json.decode(await response.read())["tokens"])
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError, LookupError, TypeError) as error:
            raise ProbeError(f"/tokenize: {error}") from None


async def _calibrate(http: aiohttp.ClientSession, endpoint: Endpoint, prompts: Prompts) -> dict[str, Any]:
    """Find what the server adds to a prompt, and set it; says how exact prompts are then."""
    added: list[int] = []
    for tokens in PROBED:
        record = await _one(http, endpoint, prompts.text(tokens, ("probe", tokens)), 1)
        if record.prompt is None:
            return {"prompt_tokens_added": None, "prompts_exact": None}
        added.append(record.prompt - tokens)
    prompts.added = max(0, sorted(added)[len(added) // 2])
    return {"prompt_tokens_added": prompts.added, "prompts_exact": len(set(added)) == 1}


async def warm_up(http: aiohttp.ClientSession, found: Found, requests: int, seed: object) -> None:
    """Together, so that batches are warm too. Failures are left for the run to show."""
    texts = [found.prompts.text(64, ("warm-up", repr(seed), number)) for number in range(requests)]
    await asyncio.gather(*(_one(http, found.endpoint, text, 16) for text in texts))
