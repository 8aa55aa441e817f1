"""`/v1/board`: what is in a snapshot, what watching costs, who may, and how a stream ends."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from services.gateway.board import RATES_OVER_S, TICK_S, Board
from services.gateway.open_requests import OpenRequests
from services.gateway.pipeline_view import PipelineView
from services.gateway.tokenizer import Tokenizer
from tests.application import Application
from tests.gateway.boards import LISTED, Pipelines
from tests.gateway.fakes import FakeEngine, client_of, make_app
from tests.gateway.server import served
from tests.gateway.test_keys import bearer, key, ring

PATH = "/v1/board"


async def snapshots(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """Until `[DONE]`, which must come before the end."""
    async for line in answer.aiter_lines():
        if line == "data: [DONE]":
            return
        if line:
            yield json.loads(line.removeprefix("data: "))
    raise AssertionError("the stream was cut")


async def test_a_snapshot_has_queues_tiers_rates_and_latencies(
    engine: FakeEngine, tokenizer: Tokenizer
) -> None:
    engine.views = Pipelines(1000)
    async with client_of(make_app(engine, tokenizer)) as client:
        (pipeline,) = (await client.get(PATH, params={"once": True})).json()["pipelines"]
    assert pipeline["serving"] and pipeline["policy"] == "skip-join"
    counts = [sum(q[state] for q in pipeline["queues"]) for state in ("running", "waiting", "preempted")]
    assert counts == [16, 492, 492]
    assert [q["queue"] for q in pipeline["queues"]] == [f"Q{level}" for level in range(1, 17)]
    assert max(len(q["jobs"]) for q in pipeline["queues"]) == LISTED
    job = pipeline["queues"][0]["jobs"][0]
    assert job == {
        "job": "0000000000000001", "request_id": None, "state": "running", "output": 0, "prompt": 10,
        "priority": 0, "waits_s": 0.0,
    }  # fmt: skip
    assert pipeline["tokens_per_s"] == pytest.approx(320) and pipeline["mean_batch"] == 16
    assert pipeline["utilisation"] == pytest.approx([0.9, 0.4])
    assert pipeline["kv"][0] == {"tier": "device", "total": 1024, "held": 614, "moving": 40, "cached": 0}
    assert (pipeline["first_token"]["p50_s"], pipeline["between_tokens"]["p95_s"]) == (0.25, 0.3)


async def test_a_pipeline_that_does_not_answer_is_shown_as_away(
    engine: FakeEngine, tokenizer: Tokenizer
) -> None:
    engine.views = lambda: [PipelineView(0, "the scheduler has not started yet")]
    async with client_of(make_app(engine, tokenizer)) as client:
        (pipeline,) = (await client.get(PATH, params={"once": True})).json()["pipelines"]
    assert not pipeline["serving"] and pipeline["reason"] == "the scheduler has not started yet"
    assert pipeline["policy"] is None and pipeline["queues"] == [] and pipeline["kv"] == []


async def test_ten_watchers_cost_one_look_a_tick_and_none_costs_nothing(engine: FakeEngine) -> None:
    engine.views = Pipelines(10)
    board, ticks = Board(engine, OpenRequests()), 4
    assert engine.looks == 0

    async def watch() -> list[bytes]:
        async with aclosing(board.watch()) as snapshots:
            return [await anext(snapshots) for _ in range(ticks)]

    started = asyncio.get_running_loop().time()
    seen = await asyncio.gather(*(watch() for _ in range(10)))
    passed = asyncio.get_running_loop().time() - started
    assert ticks <= engine.looks <= passed / TICK_S + 1
    assert all(len(set(each)) == ticks for each in seen), "each snapshot is new"
    before = engine.looks
    await board.once()  # soon enough after the others: theirs will do
    assert engine.looks == before
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def test_rates_begin_anew_with_another_scheduler_and_forget_what_is_old(engine: FakeEngine) -> None:
    views = engine.views = Pipelines(10)
    board = Board(engine, OpenRequests())

    async def rates() -> list[float | None]:
        shown = json.loads((await board._take()).encoded)
        return [each["tokens_per_s"] for each in shown["pipelines"]]

    assert await rates() == [None]
    for _ in range(20):
        assert await rates() == [pytest.approx(320, rel=0.01)]
    assert len(board._before[0]) <= RATES_OVER_S / 0.5 + 1
    views.instance = "scheduler-2"
    assert await rates() == [None]
    views.count = 0
    assert await rates() == [] and board._before == {}


async def test_jobs_have_the_names_of_their_requests(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    views, gate = Pipelines(1), asyncio.Event()
    engine.script.insert(0, gate)

    def looked() -> list[PipelineView]:
        """The one job there is belongs to the request."""
        (view,) = views()
        assert view.scheduler is not None
        first = view.scheduler.queues[0]
        job = replace(first.jobs[0], job_id=engine.submitted[0].job_id)
        scheduler = replace(view.scheduler, queues=[replace(first, jobs=[job])])
        return [view._replace(scheduler=scheduler)]

    engine.views = looked
    async with client_of(make_app(engine, tokenizer)) as client:
        body = {"model": "tiny", "prompt": "hi", "request_id": "mine"}
        asking = asyncio.create_task(client.post("/v1/completions", json=body))
        await engine.waiting.wait()

        async def shown() -> str | None:
            (pipeline,) = (await client.get(PATH, params={"once": True})).json()["pipelines"]
            return pipeline["queues"][0]["jobs"][0]["request_id"]

        assert await shown() == "mine"
        gate.set()
        await asking
        async with asyncio.timeout(30):
            while await shown() is not None:  # a snapshot counts for a tick
                pass


async def test_a_stream_ends_when_the_gateway_shuts_down(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    engine.views = Pipelines(10)
    async with (
        served(engine, tokenizer) as url,
        httpx.AsyncClient() as client,
        client.stream("GET", f"{url}/board") as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        count = 0
        async for shown in snapshots(answer):
            count += 1
            assert shown["object"] == "board"
            engine.draining = count >= 2
        assert 2 <= count <= 3  # one may have been under way


async def test_a_watcher_that_leaves_is_noticed(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    """The server waits for open requests when it stops: it would not come back from `served`."""
    engine.views = Pipelines(10)
    async with (
        asyncio.timeout(30),
        served(engine, tokenizer) as url,
        httpx.AsyncClient() as client,
        client.stream("GET", f"{url}/board") as answer,
    ):
        async for _ in snapshots(answer):
            break


async def test_only_admins_watch_where_there_are_keys(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    keys = ring(key("alice"), key("root", admin=True))
    async with client_of(make_app(engine, tokenizer, keyring=keys)) as client:
        for headers, status in (({}, 401), (bearer("alice"), 403), (bearer("root"), 200)):
            assert (await client.get(PATH, params={"once": True}, headers=headers)).status_code == status
        assert (await client.get(PATH, headers=bearer("alice"))).json()["error"]["code"] == "forbidden"
    async with client_of(make_app(engine, tokenizer, host="0.0.0.0")) as client:
        assert (await client.get(PATH)).status_code == 403


async def test_the_board_of_the_application_follows_a_request() -> None:
    async with Application() as app:
        body = app.completion("Once upon a time", 60, stream=True, request_id="watched")
        async with (
            app.http.stream("GET", PATH) as answer,
            app.http.stream("POST", "/v1/completions", json=body) as generating,
        ):
            lines = generating.aiter_lines()
            await anext(lines)
            async with asyncio.timeout(30):
                async for shown in snapshots(answer):
                    (pipeline,) = shown["pipelines"]
                    jobs = [job for queue in pipeline["queues"] for job in queue["jobs"]]
                    if any(job["output"] > 3 for job in jobs) and pipeline["tokens_per_s"]:
                        break
            (job,) = jobs
            assert job["request_id"] == "watched" and pipeline["serving"]
            device, host = pipeline["kv"]
            assert device["held"] > 0 and (host["tier"], host["total"]) == ("host", 128)
            assert 0 < pipeline["utilisation"][0] <= 1 and pipeline["batch_limit"] == 16
            assert pipeline["first_token"]["count"] >= 1 and pipeline["between_tokens"]["p50_s"] > 0
            async for _ in lines:
                pass
        await app.settled()
        (pipeline,) = (await app.http.get(PATH, params={"once": True})).json()["pipelines"]
        assert all(queue["jobs"] == [] for queue in pipeline["queues"]) and pipeline["batches"] == []
