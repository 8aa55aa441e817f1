"""A short request beside a long answer, in a batch of one."""

import asyncio

import pytest

from tests.application import Application
from tests.system.test_exact_tokens import complete


@pytest.mark.parametrize(("policy", "short_first"), [("skip-join", True), ("fcfs", False)])
async def test_a_short_request_arrives_while_a_long_answer_runs(policy: str, short_first: bool) -> None:
    async with Application(scheduler={"policy": policy, "max_batch_size": 1}) as app:
        body = app.completion("Once upon a time", 80, stream=True)
        order: list[str] = []
        running = asyncio.Event()

        async def long() -> None:
            async with app.http.stream("POST", "/v1/completions", json=body) as answer:
                chunks = 0
                async for line in answer.aiter_lines():
                    chunks += line.startswith("data: {")
                    if chunks == 10:
                        running.set()
            order.append("long")

        async def short() -> None:
            await running.wait()
            await complete(app, "Hello", max_tokens=8, ignore_eos=True)
            order.append("short")

        await asyncio.gather(long(), short())
        assert order == (["short", "long"] if short_first else ["long", "short"])
        metrics = await app.settled()
        assert (metrics["skipjoin_preemptions_total"] > 0) is short_first
