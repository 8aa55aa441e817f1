"""Prints what a second pipeline brings: the same requests at once, with one and with two behind the gateway.

    python -m loadgen.pipelines [--most 2] [--requests 32] [--tokens 48]      about 2 minutes on two cores

Each pipeline has one stage of one thread, so as many cores must be free as there are pipelines.
"""

import argparse
import asyncio
import re
import time

import httpx

from loadgen.side_by_side import PROMPT, complete, metrics, run

_ROUTED = re.compile(r'skipjoin_routed_jobs_total\{gateway="[^"]*",to="\d+"\}')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--most", type=int, default=2, help="pipelines")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=48, help="output tokens of each")
    options = parser.parse_args()
    print(
        "| pipelines | tokens/s | × one | mean latency, s | requests to each |\n|---|---|---|---|---|",
        flush=True,
    )
    one = 0.0
    for pipelines in range(1, options.most + 1):

        async def scenario(http: httpx.AsyncClient, pipelines: int = pipelines) -> tuple[float, float, str]:
            return await at_once(http, pipelines, options.requests, options.tokens)

        rate, latency, shares = run(scenario, f"parallel.replicas={pipelines}")
        one = one or rate
        print(f"| {pipelines} | {rate:.1f} | {rate / one:.2f} | {latency:.2f} | {shares} |", flush=True)


async def at_once(
    http: httpx.AsyncClient, pipelines: int, requests: int, tokens: int
) -> tuple[float, float, str]:
    """Output tokens a second, mean latency in seconds, and how many requests went to each pipeline."""
    while await serving(http) < pipelines:  # noqa: ASYNC110 - the others load in processes of their own
        await asyncio.sleep(0.5)
    began = time.perf_counter()
    latencies = await asyncio.gather(
        *(complete(http, tokens, f"Story {index}. {PROMPT}") for index in range(requests))
    )
    seconds = time.perf_counter() - began
    routed = [round(count) for name, count in sorted((await metrics(http)).items()) if _ROUTED.match(name)]
    return requests * tokens / seconds, sum(latencies) / requests, " / ".join(map(str, routed))


async def serving(http: httpx.AsyncClient) -> int:
    return sum(each["serving"] for each in (await http.get("/v1/pipelines")).json()["data"])


if __name__ == "__main__":
    main()
