"""The same of the whole application: HAProxy, the embedded model, and iterations that grow with the batch."""

import asyncio
import re
from statistics import median

import aiohttp
import httpx

from loadgen.calm.cpu import cpu_seconds
from loadgen.calm.streams import Load, Streams, probe
from loadgen.served import ServedApplication
from loadgen.side_by_side import MODEL

_TOKENS, _LONG, _PROBES = 32, 450, 12
_PLACES = 128
"""Of the batch: more than stream beside a lone request, so that it finds one free."""
_SAMPLE = re.compile(r"^(skipjoin_inter_token_seconds_(?:sum|count))\{[^}]*\} (\S+)$", re.MULTILINE)


def real(streams: int, beside: int) -> None:
    """Prints both tables."""
    settings = (
        f"scheduler.max_batch_size={_PLACES}",
        "kv.device_blocks=4096",
        "kv.prefix_reuse=false",
        f"gateway.max_queued_requests={streams - streams // 8}",
    )
    with ServedApplication(*settings) as served:
        asyncio.run(_measure(served, streams, beside))


async def _measure(served: ServedApplication, streams: int, beside: int) -> None:
    (gateway,) = served.pids("gateway")
    proxies = [pid for pid, line in served.processes().items() if line.split(" ")[0].endswith("/haproxy")]
    print(f"### The whole application, with room for {streams - streams // 8} requests\n")
    print("| streams | outcome | tokens | gateway CPU, ms a token | HAProxy's |\n|---|---|---|---|---|")
    async with Streams(Load(served.url, MODEL, 8, 8)) as running:
        await running.ended()
    before = cpu_seconds(gateway), sum(map(cpu_seconds, proxies))
    async with Streams(Load(served.url, MODEL, streams, _TOKENS)) as running:
        ended = await running.ended()
    own = 1e3 * (cpu_seconds(gateway) - before[0]) / ended.tokens
    proxy = 1e3 * (sum(map(cpu_seconds, proxies)) - before[1]) / ended.tokens
    how = ", ".join(f"{count} {kind}" for kind, count in sorted(ended.outcomes.items()))
    print(f"| {streams} | {how} | {ended.tokens} | {own:.3f} | {proxy:.3f} |", flush=True)

    print("\n### A lone request: time to first token beside an iteration, ms (median, mean)\n")
    print("| others that stream | first token | one iteration |\n|---|---|---|")
    for others in (0, beside):
        if others:
            async with Streams(Load(served.url, MODEL, others, _LONG, begun=others)):
                first, iteration = await _probe(served.url)
        else:
            first, iteration = await _probe(served.url)
        print(f"| {others} | {first:.1f} | {iteration:.1f} |", flush=True)


async def _probe(url: str) -> tuple[float, float]:
    before = await asyncio.to_thread(_inter_token, url)
    waited: list[float] = []
    async with aiohttp.ClientSession() as http:
        for _ in range(_PROBES):
            sent, first = await probe(http, url, MODEL, "probe")
            waited.append(first - sent)
    after = await asyncio.to_thread(_inter_token, url)
    count = after[1] - before[1]
    return 1e3 * median(waited), 1e3 * (after[0] - before[0]) / count


def _inter_token(url: str) -> tuple[float, float]:
    found = dict(_SAMPLE.findall(httpx.get(f"{url}/metrics").text))
    return tuple(float(found[f"skipjoin_inter_token_seconds_{each}"]) for each in ("sum", "count"))  # type: ignore[return-value]
