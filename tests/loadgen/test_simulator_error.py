"""The comparison of live and simulated runs, without the live system."""

import asyncio
import json

import httpx
import numpy as np
import pytest

from loadgen import simulator_error
from loadgen.simulator_error import Run
from loadgen.workload.requests import Request
from services.profiler.core import Measurement
from shared.config import parse
from shared.costmodel import BatchLoad, CostModel

COST = CostModel(0.02, 1e-3, 0.0, 0.03, 1e-5, 2e-3, samples=1)


def test_a_row_has_the_errors_of_mean_p95_and_single_requests() -> None:
    live = Run(np.array([1.0, 3.0]), 10, 1.0)
    cells = simulator_error.row("fcfs", "as profiled", live, Run(np.array([2.0, 3.0]), 10, 1.0))
    assert cells == "| fcfs | as profiled | 2.00 | 2.50 | +25.0 | 2.90 | 2.95 | +1.7 | 50.0 |"


def test_costs_that_were_measured_are_the_simulated_ones() -> None:
    loads = [BatchLoad(n, n * n) for n in (16, 64, 128, 256)] * 4
    loads += [BatchLoad(0, 0, jobs, jobs * context) for jobs in (1, 4, 8) for context in (50, 200)] * 4
    model = simulator_error.fitted([Measurement(load, COST.seconds(load)) for load in loads])
    config = parse({"scheduler": {"policy": "fcfs", "max_batch_size": 1}})
    run = simulator_error.simulate(config, model, [Request(0.0, 100, 3), Request(0.0, 100, 3)], 0.5)
    compute = COST.prefill(100) + COST.decode(101) + COST.decode(102)
    assert run.iterations == 6
    assert run.compute == pytest.approx(2 * compute, rel=0.02)
    assert run.times.tolist() == pytest.approx([compute + 1.5, 2 * compute + 3.0], rel=0.02)


async def test_times_count_from_the_scheduled_arrival_and_prompts_are_token_ids() -> None:
    asked: list[dict[str, object]] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        asked.append(body)
        return httpx.Response(200, json={"usage": {"completion_tokens": body["max_tokens"]}})

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://live") as http:
        late = asyncio.get_running_loop().time() - 5.0
        assert await simulator_error.ask(http, [1, 2], 7, at=late) >= 5.0, (
            "the client was late, the job was not"
        )
        requests = [Request(0.0, 20, 4), Request(0.01, 30, 5)]
        times = await asyncio.gather(*simulator_error.players(http, requests, seed=1))
    assert all(0 <= seconds < 5.0 for seconds in times)
    assert [(len(body["prompt"]), body["max_tokens"]) for body in asked[1:]] == [(20, 4), (30, 5)]  # type: ignore[arg-type]
    assert all(body["ignore_eos"] for body in asked)


async def test_an_answer_of_another_length_is_no_comparison() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json={"usage": {"completion_tokens": 3}}))
    async with httpx.AsyncClient(transport=transport, base_url="http://live") as http:
        with pytest.raises(RuntimeError, match="3 output tokens instead of 4"):
            await simulator_error.ask(http, [1], 4, at=0.0)
