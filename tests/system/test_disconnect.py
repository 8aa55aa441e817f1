"""A client that leaves costs nothing afterwards, whatever its request was doing."""

import asyncio

import pytest

from tests.application import Application
from tests.system.reference import make_prompt


@pytest.mark.parametrize("stages", [1, 2])
async def test_clients_that_leave_give_their_blocks_back(stages: int) -> None:
    """Nor does one that asks for more than the pool holds: it is told so at once."""
    async with Application(
        kv={"device_blocks": 16, "host_blocks": 32},
        scheduler={"max_batch_size": 3},
        parallel={"pipeline_stages": stages},
    ) as app:
        too_long = await app.http.post("/v1/completions", json=app.completion("word " * 300, 1))
        assert too_long.status_code == 400 and "KV cache" in too_long.json()["error"]["message"]
        body = {"model": app.config.model.served_name, "max_tokens": 150, "ignore_eos": True, "stream": True}

        async def leave_after(index: int, chunks: int) -> None:
            async with app.http.stream(
                "POST", "/v1/completions", json={**body, "prompt": make_prompt(index)}
            ) as answer:
                seen = 0
                async for line in answer.aiter_lines():
                    seen += line.startswith("data: {")
                    if seen >= chunks:
                        break

        waiting = asyncio.create_task(leave_after(9, 10_000))
        await asyncio.gather(*(leave_after(index, 1 + 3 * index) for index in range(6)))
        waiting.cancel()
        metrics = await app.settled()
        assert metrics['skipjoin_kv_blocks{state="free",tier="device"}'] == 16
        assert metrics['skipjoin_kv_blocks{state="free",tier="host"}'] == 32
        assert metrics["skipjoin_open_requests"] == 0
        assert metrics['skipjoin_jobs_finished_total{reason="abort"}'] >= 6
