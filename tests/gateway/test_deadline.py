"""Deadlines: what happens when an answer is not complete in the time that its client allows."""

import asyncio
from typing import Any

import openai
import pytest

from services.gateway.interruption import Interruption
from services.gateway.tokenizer import Tokenizer
from shared.errors import DeadlinePassed
from shared.metrics import Registry
from tests.application import Application
from tests.gateway.fakes import MODEL, FakeEngine, client_of, events_of, make_app
from tests.gateway.server import served

COMPLETION: dict[str, Any] = {"model": MODEL, "prompt": "hi", "max_tokens": 5}
PATH = "/v1/completions"
SOON = 0.05


@pytest.mark.parametrize("how", [{"json": {"timeout": SOON}}, {"headers": {"X-Request-Timeout": str(SOON)}}])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("first", [[[5]], []], ids=["after a token", "before any token"])
async def test_a_whole_answer_that_is_late_is_a_504(
    engine: FakeEngine, tokenizer: Tokenizer, how: dict[str, Any], n: int, first: list[list[int]]
) -> None:
    engine.script = [*first, asyncio.Event(), [6]]
    registry = Registry()
    async with client_of(make_app(engine, tokenizer, registry=registry)) as client:
        body = COMPLETION | how.get("json", {}) | {"n": n}
        answer = await client.post(PATH, json=body, headers=how.get("headers"))
    assert answer.status_code == 504 and answer.headers["x-should-retry"] == "false"
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("deadline_exceeded", "timeout")
    assert f"{SOON} s" in error["message"]
    assert sorted(engine.aborted) == sorted(submit.job_id for submit in engine.submitted)
    labels = {"endpoint": PATH, "outcome": "timeout", "status": "504"}
    assert registry.collector.get_sample_value("skipjoin_requests_total", labels) == 1


async def test_a_stream_that_is_late_ends_with_an_error_event(
    engine: FakeEngine, tokenizer: Tokenizer
) -> None:
    engine.script = [[5], asyncio.Event(), [6]]
    async with client_of(make_app(engine, tokenizer)) as client:
        answer = await client.post(PATH, json=COMPLETION | {"stream": True, "timeout": SOON})
    assert answer.status_code == 200
    first, error, done = events_of(answer.text)
    assert first["choices"][0]["finish_reason"] is None
    assert error["error"]["code"] == "deadline_exceeded" and done == "[DONE]"
    assert engine.aborted == [engine.submitted[0].job_id]


@pytest.mark.parametrize(
    ("field", "header", "param"),
    [
        (0, None, "timeout"),
        (-1, None, "timeout"),
        ("5", None, "timeout"),
        (100.5, None, "timeout"),
        (None, "0", "X-Request-Timeout"),
        (None, "soon", "X-Request-Timeout"),
        (None, "nan", "X-Request-Timeout"),
        (None, "inf", "X-Request-Timeout"),
        (5, "101", "X-Request-Timeout"),
    ],
)
async def test_a_deadline_that_cannot_be_is_refused_by_name(
    engine: FakeEngine, tokenizer: Tokenizer, field: Any, header: str | None, param: str
) -> None:
    async with client_of(make_app(engine, tokenizer, max_timeout_s=100)) as client:
        headers = {"X-Request-Timeout": header} if header else {}
        answer = await client.post(PATH, json=COMPLETION | {"timeout": field}, headers=headers)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param
    assert engine.submitted == []


async def test_an_answer_in_time_is_not_touched(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    async with client_of(make_app(engine, tokenizer)) as client:
        answer = await client.post(
            PATH, json=COMPLETION | {"timeout": 60}, headers={"X-Request-Timeout": "9"}
        )
    assert answer.status_code == 200 and engine.aborted == []


async def test_the_official_client_is_not_made_to_try_again(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    engine.script = [[5], asyncio.Event(), [6]]
    async with (
        served(engine, tokenizer) as url,
        openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=2) as client,
    ):
        with pytest.raises(openai.InternalServerError, match="timeout"):
            await client.completions.create(
                model=MODEL, prompt="hi", max_tokens=5, extra_body={"timeout": SOON}
            )
        assert len(engine.submitted) == 1


async def never() -> Any:
    await asyncio.Event().wait()


async def test_an_interruption_in_the_moment_of_the_end_does_not_hit_what_follows() -> None:
    interruption = Interruption(60)
    async with interruption.guard(never):
        interruption.because(DeadlinePassed(1))
    await asyncio.sleep(0)  # would raise CancelledError
    task = asyncio.current_task()
    assert task and task.cancelling() == 0


async def test_an_interruption_before_the_block() -> None:
    interruption = Interruption()
    interruption.because(DeadlinePassed(1))
    with pytest.raises(DeadlinePassed):
        async with interruption.guard(never):
            raise AssertionError


async def test_cancelling_from_outside_stays_a_cancellation() -> None:
    interruption, entered = Interruption(60), asyncio.Event()

    async def work() -> None:
        async with interruption.guard(never):
            entered.set()
            await never()

    task = asyncio.create_task(work())
    await entered.wait()
    task.cancel()
    interruption.because(DeadlinePassed(1))
    await asyncio.wait([task])
    assert task.cancelled()


async def test_blocks_come_back_when_a_deadline_passes() -> None:
    async with Application(kv={"device_blocks": 16, "host_blocks": 32}) as app:
        body = app.completion("Once upon a time", 200, timeout=0.5)
        answers = await asyncio.gather(
            *(app.http.post(PATH, json=body | {"stream": stream}) for stream in (False, True))
        )
        assert answers[0].status_code == 504
        assert '"deadline_exceeded"' in answers[1].text and answers[1].text.endswith("data: [DONE]\n\n")
        metrics = await app.settled()
        assert metrics['skipjoin_kv_blocks{state="free",tier="device"}'] == 16
        assert metrics['skipjoin_jobs_finished_total{reason="abort"}'] == 2
