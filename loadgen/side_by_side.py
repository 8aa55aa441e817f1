"""Prints what preemption is worth here against its alternative, and what an iteration costs beside the model.

    python -m loadgen.side_by_side            about 3 minutes on two cores

preemption: one long answer runs in a batch of one, short requests arrive one after another
iteration: the share of wall time that is the model's own compute, at batch 1 and 16
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import httpx

from loadgen.served import ServedApplication

_T = TypeVar("_T")

MODEL = "SmolLM2-135M-Instruct"
PROMPT = "Once upon a time there was a river that ran through an orchard and over a mountain. "


def main() -> None:
    print("### A short request (8 tokens) beside a long answer (512 tokens), batch of one\n")
    print("| policy | short alone, s | shorts beside it, mean s | long, s |\n|---|---|---|---|")
    for policy in ("skip-join", "fcfs"):
        alone, beside, long = run(
            short_beside_long, f"scheduler.policy={policy}", "scheduler.max_batch_size=1"
        )
        print(f"| {policy} | {alone:.2f} | {beside:.2f} | {long:.1f} |", flush=True)

    print("\n### Wall time of an iteration and the stage's compute in it\n")
    print("| requests at once | iteration, ms | compute, ms | everything else |\n|---|---|---|---|")
    for jobs, wall, compute in run(iterations):
        print(f"| {jobs} | {wall:.1f} | {compute:.1f} | {100 * (wall / compute - 1):.1f} % |", flush=True)


def run(scenario: Callable[[httpx.AsyncClient], Awaitable[_T]], *assignments: str) -> _T:
    """Start the application with these settings and run the scenario against it."""

    async def connected(url: str) -> _T:
        async with httpx.AsyncClient(base_url=url, timeout=300) as http:
            return await scenario(http)

    with ServedApplication(*assignments) as served:
        return asyncio.run(connected(served.url))


async def short_beside_long(http: httpx.AsyncClient) -> tuple[float, float, float]:
    """Seconds of a short request alone, of the mean short beside the long answer, and of the long one."""
    alone = await complete(http, 8)
    started = asyncio.Event()
    long = asyncio.create_task(stream(http, 512, started))
    await started.wait()
    beside: list[float] = []
    while not long.done():
        beside.append(await complete(http, 8))
        await asyncio.sleep(1.0)  # the think time of the one user who sends shorts
    return alone, sum(beside) / len(beside), await long


async def iterations(http: httpx.AsyncClient) -> list[tuple[int, float, float]]:
    """(requests at once, wall ms, compute ms) per iteration."""
    rows: list[tuple[int, float, float]] = []
    for jobs in (1, 16):
        before, began = await metrics(http), time.perf_counter()
        await asyncio.gather(*(complete(http, 64, f"Story {index}. {PROMPT}") for index in range(jobs)))
        seconds = time.perf_counter() - began
        after = await metrics(http)
        count, compute = (
            after[f'skipjoin_stage_step_seconds_{what}{{stage="0"}}']
            - before[f'skipjoin_stage_step_seconds_{what}{{stage="0"}}']
            for what in ("count", "sum")
        )
        rows.append((jobs, 1000 * seconds / count, 1000 * compute / count))
    return rows


async def complete(http: httpx.AsyncClient, tokens: int, prompt: str = PROMPT) -> float:
    """Seconds of one request of exactly `tokens` output tokens."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    began = time.perf_counter()
    answer = await http.post("/v1/completions", json=body)
    answer.raise_for_status()
    return time.perf_counter() - began


async def stream(http: httpx.AsyncClient, tokens: int, started: asyncio.Event) -> float:
    """As `complete`; `started` is set at the first token."""
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True, "stream": True}
    began = time.perf_counter()
    async with http.stream("POST", "/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                started.set()
    return time.perf_counter() - began


async def metrics(http: httpx.AsyncClient) -> dict[str, float]:
    lines = (await http.get("/metrics")).text.splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


if __name__ == "__main__":
    main()
