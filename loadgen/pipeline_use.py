"""Prints how busy two pipeline stages are, and what a second batch in flight is worth.

    python -m loadgen.pipeline_use [--model FOLDER] [--batch 8] [--tokens 64]     about 2 minutes on two cores

Twice as many requests as a batch takes, so that batches are equally large with one and with two in flight.
Each stage computes with one thread; it needs a core of its own, or the stages wait for each other's.

busy: share of the time with batches in flight in which a stage computed or waited for a copy
bubble: the rest of it
"""

import argparse
import asyncio
import time
from dataclasses import dataclass

import httpx

from loadgen.served import ServedApplication
from loadgen.side_by_side import metrics

STAGES = 2
IN_FLIGHT = (1, 2)
PROMPT = "Once upon a time there was a river that ran through an orchard and over a mountain."
SETTINGS = (
    f"parallel.pipeline_stages={STAGES}",
    "stage.threads=1",
    "kv.device_blocks=512",
    "kv.host_blocks=0",
    "profiler.cache=false",
    "profiler.prefill_tokens=[16, 64]",
    "profiler.decode_batches=[1, 8]",
    "profiler.decode_tokens=3",
)


@dataclass(frozen=True, slots=True)
class Row:
    """tokens_per_s: output tokens; busy, bubble: by stage, shares of the active time"""

    in_flight: int
    tokens_per_s: float
    iterations: float
    busy: list[float]
    bubble: list[float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--split", type=int, nargs=STAGES, help="layers of each stage; default: balanced")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    requests = 2 * options.batch
    print(f"{options.model}, {STAGES} stages of one thread, {requests} requests of {options.tokens} tokens")
    print("| batches in flight | tokens/s | iterations | busy | bubble |\n|---|---|---|---|---|")
    settings = [*SETTINGS, f"model.path={options.model}", f"scheduler.max_batch_size={options.batch}"]
    if options.split:
        settings.append(f"parallel.layer_split={options.split}")
    rows: list[Row] = []
    for in_flight in IN_FLIGHT:
        with ServedApplication(*settings, f"scheduler.batches_in_flight={in_flight}") as served:
            row = asyncio.run(measure(served.url, in_flight, requests, options.tokens))
        rows.append(row)
        shares = (" / ".join(f"{100 * share:.0f} %" for share in part) for part in (row.busy, row.bubble))
        figures = f"{row.tokens_per_s:.1f} | {row.iterations:.0f} | {' | '.join(shares)}"
        print(f"| {in_flight} | {figures} |", flush=True)
    print(f"\nThroughput with two in flight over one: {rows[1].tokens_per_s / rows[0].tokens_per_s:.2f}")


async def measure(url: str, in_flight: int, requests: int, tokens: int) -> Row:
    """All requests at once; the time is from the first to the last answer."""
    async with httpx.AsyncClient(base_url=url, timeout=300) as http:
        model = (await http.get("/v1/models")).json()["data"][0]["id"]
        await asyncio.gather(*(complete(http, model, index, 4) for index in range(requests)))  # warm
        before, began = await metrics(http), time.perf_counter()
        await asyncio.gather(*(complete(http, model, index, tokens) for index in range(requests)))
        seconds = time.perf_counter() - began
        after = await metrics(http)
    spent = {name: after[name] - before.get(name, 0.0) for name in after}
    active = spent["skipjoin_pipeline_active_seconds_total"]

    def by_stage(what: str) -> list[float]:
        names = [f'skipjoin_stage_{what}_seconds_total{{stage="{stage}"}}' for stage in range(STAGES)]
        return [spent[name] / active for name in names]

    iterations = spent["skipjoin_iterations_total"]
    return Row(in_flight, requests * tokens / seconds, iterations, by_stage("busy"), by_stage("bubble"))


async def complete(http: httpx.AsyncClient, model: str, index: int, tokens: int) -> None:
    """A request of exactly `tokens` output tokens; its prompt is like no other's."""
    body = {"model": model, "prompt": f"{index}. {PROMPT}", "max_tokens": tokens, "ignore_eos": True}
    answer = await http.post("/v1/completions", json={**body, "temperature": 0})
    answer.raise_for_status()


if __name__ == "__main__":
    main()
