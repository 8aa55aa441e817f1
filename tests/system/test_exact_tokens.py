"""Whatever batching, swapping, preemption and pipelining did: the tokens are those of Hugging Face."""

import asyncio

import pytest

from shared.messages import TokenBatch
from tests.application import Application
from tests.system.reference import Reference, make_prompt

JOBS, TOKENS = 16, 24


async def complete(app: Application, prompt: str, **fields: object) -> dict[str, object]:
    body = {"model": app.config.model.served_name, "prompt": prompt, "temperature": 0, **fields}
    answer = await app.http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def collect_tokens(app: Application) -> tuple[dict[int, list[int]], asyncio.Task[None]]:
    """Everything the scheduler sends to the gateway, by job id: text could hide a difference."""
    received: dict[int, list[int]] = {}
    tokens = await app.gateway.bus.subscribe(
        app.gateway.bus.subjects.tokens(app.gateway.bus.instance), depth=65536
    )

    async def read() -> None:
        async for delivery in tokens:
            assert isinstance(delivery.body, TokenBatch)
            for item in delivery.body.items:
                have = received.setdefault(item.job_id, [])
                assert item.start == len(have)
                have += item.tokens

    return received, asyncio.create_task(read())


@pytest.mark.parametrize(
    ("stages", "policy", "mode"),
    [
        (1, "skip-join", "proactive"),
        (1, "skip-join", "reactive"),
        (1, "fcfs", "proactive"),
        (2, "skip-join", "proactive"),
        (2, "gittins", "reactive"),
        (1, "skip-join", "recompute"),
        (1, "skip-join", "defer"),
    ],
)
async def test_sixteen_at_once_in_a_pool_for_five(
    reference: Reference, stages: int, policy: str, mode: str
) -> None:
    async with Application(
        kv={"device_blocks": 24, "host_blocks": 96, "swap_mode": mode},
        scheduler={"policy": policy},
        parallel={"pipeline_stages": stages},
    ) as app:
        received, reading = await collect_tokens(app)
        prompts = [make_prompt(index) for index in range(JOBS)]
        answers = await asyncio.gather(
            *(complete(app, prompt, max_tokens=TOKENS, ignore_eos=True) for prompt in prompts)
        )
        metrics = await app.settled()
        reading.cancel()
        for prompt, answer in zip(prompts, answers, strict=True):
            job_id = int(str(answer["id"]).removeprefix("cmpl-"), 16)
            assert len(received[job_id]) == TOKENS
            await asyncio.to_thread(reference.assert_greedy, prompt, received[job_id])
            text = reference.tokenizer.decode(received[job_id], skip_special_tokens=True)
            assert answer["choices"][0]["text"] == text  # type: ignore[index]

        if mode in ("proactive", "reactive"):
            assert metrics["skipjoin_swap_out_blocks_total"] > 0
            assert metrics["skipjoin_swap_in_blocks_total"] > 0
        else:
            assert metrics["skipjoin_kv_dropped_jobs_total"] > 0
        assert metrics['skipjoin_kv_blocks{state="free",tier="device"}'] == 24
        cached = metrics["skipjoin_prefix_cached_blocks"]
        assert metrics['skipjoin_kv_blocks{state="free",tier="host"}'] + cached == 96
        assert metrics["skipjoin_kv_integrity_violations_total"] == 0


async def test_prompts_computed_in_parts(reference: Reference) -> None:
    """Beside the decodes of others, in a pool that makes them swap."""
    async with Application(
        kv={"device_blocks": 24, "host_blocks": 96},
        scheduler={"max_batch_tokens": 24, "chunked_prefill": True},
    ) as app:
        prompts = [make_prompt(index) * 3 for index in range(6)]
        received, reading = await collect_tokens(app)
        answers = await asyncio.gather(
            *(complete(app, prompt, max_tokens=12, ignore_eos=True) for prompt in prompts)
        )
        await app.settled()
        reading.cancel()
        for prompt, answer in zip(prompts, answers, strict=True):
            job_id = int(str(answer["id"]).removeprefix("cmpl-"), 16)
            await asyncio.to_thread(reference.assert_greedy, prompt, received[job_id])


async def test_sampled_text_depends_on_the_seed_and_not_on_the_company() -> None:
    async with Application() as app:
        fields = {"temperature": 0.9, "top_p": 0.95, "top_k": 50, "max_tokens": 24, "ignore_eos": True}
        alone = await complete(app, make_prompt(3), seed=11, **fields)
        crowd = await asyncio.gather(
            complete(app, make_prompt(3), seed=11, **fields),
            *(complete(app, make_prompt(index), seed=index, **fields) for index in range(7)),
            complete(app, make_prompt(3), seed=12, **fields),
        )
        texts = [answer["choices"][0]["text"] for answer in (alone, *crowd)]  # type: ignore[index]
        assert texts[0] == texts[1] and texts[0] != texts[-1]
