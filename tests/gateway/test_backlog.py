"""What is refused when too much is unfinished, and when to come back."""

import asyncio

import openai
import pytest

from services.gateway.backlog import LONGEST_RETRY_S, Backlog
from services.gateway.tokenizer import Tokenizer
from shared.clock import VirtualClock
from shared.costmodel import CostModel
from shared.errors import InvalidRequest, Overloaded
from shared.ids import JobId
from shared.messages import Sampling, Submit
from tests.gateway.fakes import MODEL, FakeEngine, client_of, make_app
from tests.gateway.server import served
from tests.gateway.test_disconnect import Client

COST = CostModel(0.0, 0.01, 0.0, 0.1, 0.0, 0.0, samples=9)
"""10 ms per prompt token; 100 ms per decode iteration, whatever the batch."""
COMPLETION = {"model": MODEL, "prompt": "hi", "max_tokens": 100}


class Written:
    def __init__(self, completion_tokens: int) -> None:
        self.completion_tokens = completion_tokens


def job(prompt: int, output: int) -> Submit:
    return Submit(JobId(1), "gateway", [1] * prompt, output, Sampling())


def backlog(requests: int = 100, tokens: int = 10_000, batch: int = 2) -> tuple[Backlog, VirtualClock]:
    clock = VirtualClock()
    made = Backlog(requests, tokens, batch, clock)
    made.cost = COST
    return made, clock


def test_requests_are_bounded_and_leaving_makes_room() -> None:
    queue, _ = backlog(requests=2)
    first, _ = queue.enter(), queue.enter()
    with pytest.raises(Overloaded, match="max_queued_requests") as refused:
        queue.enter()
    assert (refused.value.kind, refused.value.code) == ("requests", "queue_full")
    first.leave()
    first.leave()
    queue.enter()
    assert len(queue) == 2


def test_tokens_are_bounded_over_all_choices() -> None:
    queue, _ = backlog(tokens=100)
    place = queue.enter()
    place.take([job(10, 20), job(10, 20)])
    other = queue.enter()
    with pytest.raises(Overloaded, match="max_queued_tokens") as refused:
        other.take([job(1, 40)])
    assert refused.value.kind == "tokens"
    other.leave()
    assert queue.tokens == 60
    place.leave()
    assert (queue.tokens, len(queue)) == (0, 0)


def test_what_could_never_be_taken_is_no_matter_of_retrying() -> None:
    queue, _ = backlog(tokens=100)
    with pytest.raises(InvalidRequest, match="101 tokens"):
        queue.enter().take([job(1, 100)])


def test_the_work_left_is_predicted_from_the_cost_model() -> None:
    queue, _ = backlog()
    assert queue.seconds_left() == 0
    place = queue.enter()
    place.take([job(50, 20)])
    assert queue.seconds_left() == pytest.approx(50 * 0.01 + 20 * 0.1)
    place.progress = Written(15)
    assert queue.seconds_left() == pytest.approx(5 * 0.1)  # its prefill is done too
    for _ in range(3):
        queue.enter().take([job(10, 20)])
    assert queue.seconds_left() == pytest.approx(3 * 0.1 + (5 + 60) * 0.1 / 2)  # two run at once


def test_answers_that_end_early_shorten_the_prediction() -> None:
    queue, _ = backlog()
    for _ in range(200):
        place = queue.enter()
        place.take([job(10, 1000)])
        place.progress = Written(100)
        place.leave()
    queue.enter().take([job(10, 1000)])
    assert queue.seconds_left() == pytest.approx(10.1, rel=0.01)


def test_the_wait_is_bounded_and_estimated_anew_after_a_while() -> None:
    queue, clock = backlog(requests=1)

    def wait() -> float:
        with pytest.raises(Overloaded) as refused:
            queue.enter()
        return refused.value.retry_after

    place = queue.enter()
    place.take([job(10, 20)])
    assert wait() == pytest.approx(2.1)
    place.progress = Written(19)
    assert wait() == pytest.approx(2.1)
    clock.advance(1)
    assert wait() == pytest.approx(0.1)
    queue.cost = CostModel(0, 1, 0, 100.0, 0, 0)
    clock.advance(1)
    assert wait() == LONGEST_RETRY_S


async def test_a_full_queue_is_a_429_with_a_time_to_come_back(
    engine: FakeEngine, tokenizer: Tokenizer
) -> None:
    engine.cost = COST
    release = asyncio.Event()
    engine.script = [release, [5]]
    async with client_of(make_app(engine, tokenizer, max_queued_requests=1)) as client:
        first = asyncio.create_task(client.post("/v1/completions", json=COMPLETION))
        await engine.waiting.wait()
        for stream in (False, True):
            answer = await client.post("/v1/completions", json=COMPLETION | {"stream": stream})
            assert answer.status_code == 429
            error = answer.json()["error"]
            assert (error["type"], error["code"]) == ("requests", "queue_full")
            assert "1 requests are unfinished" in error["message"]
            assert answer.headers["retry-after"] == "11"  # 100 iterations and the prompt
        release.set()
        assert (await first).status_code == 200
        assert (await client.post("/v1/completions", json=COMPLETION)).status_code == 200
        assert len(engine.submitted) == 2


@pytest.mark.parametrize("body", [{"max_tokens": 0}, {"max_tokens": 10_000}, {"model": "other"}])
async def test_refused_requests_keep_no_place(engine: FakeEngine, tokenizer: Tokenizer, body: dict) -> None:
    async with client_of(make_app(engine, tokenizer, max_queued_requests=1)) as client:
        for _ in range(3):
            assert (await client.post("/v1/completions", json=COMPLETION | body)).status_code in (400, 404)
        assert (await client.post("/v1/completions", json=COMPLETION)).status_code == 200


async def test_a_client_that_leaves_gives_its_place_back(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    engine.script = [[5], asyncio.Event(), [6]]
    app = make_app(engine, tokenizer, max_queued_tokens=120)
    leaving = Client(app, COMPLETION | {"stream": True}, "/v1/completions")
    await engine.waiting.wait()
    async with client_of(app) as client:
        assert (await client.post("/v1/completions", json=COMPLETION)).status_code == 429
        leaving.leave()
        await leaving.task
        engine.script = [[5]]
        assert (await client.post("/v1/completions", json=COMPLETION)).status_code == 200


async def test_the_official_client_raises_its_rate_limit_error(
    engine: FakeEngine, tokenizer: Tokenizer
) -> None:
    engine.script = [asyncio.Event(), [5]]
    async with (
        served(engine, tokenizer, max_queued_tokens=110) as url,
        openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client,
    ):
        first = asyncio.create_task(client.completions.create(model=MODEL, prompt="hi", max_tokens=100))
        await engine.waiting.wait()
        with pytest.raises(openai.RateLimitError, match="max_queued_tokens") as refused:
            await client.completions.create(model=MODEL, prompt="hi", max_tokens=100)
        assert int(refused.value.response.headers["retry-after"]) >= 1
        first.cancel()
