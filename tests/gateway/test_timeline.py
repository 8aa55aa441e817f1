"""Timelines at the gateway: complete when all have spoken, bounded, shown to whom they belong."""

import asyncio
from itertools import permutations, product
from typing import Any

import msgspec
import pytest

from services.gateway.timelines import JOBS_PER_REQUEST, KeptTimelines
from services.gateway.tokenizer import Tokenizer
from shared.ids import JobId
from shared.messages import (
    IterationSample,
    JobState,
    LevelChange,
    RequestEnded,
    Segment,
    Timeline,
    Timelines,
)
from tests.gateway.fakes import MODEL, FakeEngine, client_of, make_app
from tests.gateway.test_keys import bearer, key, ring

BODY: dict[str, Any] = {"model": MODEL, "prompt": "hi", "max_tokens": 5}
PATH = "/v1/completions"
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


def timeline_of(
    job: int, request_id: str = "mine", choice: int = 0, finish: str | None = "length"
) -> Timeline:
    """Of a job that was done 3 ms after its arrival, before which another one ran."""
    segments = [
        Segment(JobState.GATEWAY, 0.0, 0.001),
        Segment(JobState.QUEUED, 0.001, 0.002, 1, displaced_by=["other"]),
        Segment(JobState.PREFILL, 0.002, 0.003, 1, 1),
    ]
    trace, demotions = f"00-{TRACE_ID}-b7ad6b7169203331-01", [LevelChange(0.003, 2)]
    return Timeline(
        JobId(job), request_id, choice, trace, 0.003, segments, 0.003, finish, 4, 1, demotions,
    )  # fmt: skip


class Request:
    """What the store reads of one."""

    def __init__(self, answer_id: str, *jobs: int, finishes: tuple[str, ...] = ("",)) -> None:
        self.request_id, self.answer_id, self.key = "mine", answer_id, "alice"
        self.job_ids = [JobId(job) for job in jobs]
        self.finishes = finishes * len(jobs) if len(finishes) == 1 else finishes
        self.total_s, self.arrived, self.trace = 0.5, 100.0, None


def ended(kept: KeptTimelines, *jobs: int) -> None:
    kept.jobs_ended([timeline_of(job, choice=choice) for choice, job in enumerate(jobs)])


@pytest.mark.parametrize("order", permutations("abr"))
def test_a_request_is_complete_when_all_have_spoken_in_whichever_order(order: tuple[str, ...]) -> None:
    kept, told = KeptTimelines(10), list[RequestEnded]()
    kept.on_ended = told.append
    request: Any = Request("cmpl-1", 1, 2, finishes=("stop", ""))
    for each in order:
        assert not told
        match each:
            case "a":
                kept.jobs_ended([timeline_of(1)])
            case "b":
                kept.jobs_ended([timeline_of(2, choice=1)])
            case _:
                kept.request_ended(request)
    assert [each.answer_id for each in told] == ["cmpl-1"]
    (found,) = kept.find("mine")
    assert found.ended is told[0] and found.arrived == 100.0
    for choice, finish in zip(found.ended.timelines, ("stop", "length"), strict=True):
        assert choice.segments[-1] == Segment(JobState.SENDING, 0.003, 0.5)
        assert (choice.total, choice.finish) == (0.5, finish)
    assert not kept._jobs and not kept._waiting and not kept._request_of


def test_the_store_is_bounded_whatever_is_missing() -> None:
    kept = KeptTimelines(3)
    for number in range(100):
        request: Any = Request(f"cmpl-{number}", number)
        if number % 3 != 0:
            kept.request_ended(request)
        if number % 3 != 1:
            ended(kept, number)
    assert [each.ended.answer_id for each in kept.since(0.0)] == ["cmpl-92", "cmpl-95", "cmpl-98"]
    assert len(kept._waiting) <= 3 and len(kept._request_of) <= 3
    assert len(kept._jobs) <= 3 * JOBS_PER_REQUEST


async def test_it_is_waited_for_only_as_long_as_it_may_take() -> None:
    kept, request = KeptTimelines(3), Request("cmpl-1", 1)
    kept.request_ended(request)  # type: ignore[arg-type]
    assert await kept.wait_for("cmpl-1", 0.01) is None
    waiting = asyncio.create_task(kept.wait_for("cmpl-1", 60))
    await asyncio.sleep(0)
    ended(kept, 1)
    found = await waiting
    assert found is not None and found.ended.answer_id == "cmpl-1"


async def test_a_request_is_told_of_before_and_after_its_end(
    engine: FakeEngine, tokenizer: Tokenizer
) -> None:
    kept, gate = KeptTimelines(10), asyncio.Event()
    engine.script = [[5], gate, [6]]
    async with client_of(make_app(engine, tokenizer, timelines=kept)) as client:
        asked = asyncio.create_task(client.post(PATH, json=BODY | {"request_id": "mine"}))
        await engine.waiting.wait()
        (submit,) = engine.submitted
        assert (submit.request_id, submit.choice) == ("mine", 0)
        here = (await client.get("/v1/requests/mine/timeline")).json()
        assert [segment["state"] for segment in here["segments"]] == ["gateway"]
        engine.parts = [Timelines([timeline_of(submit.job_id, finish=None)], pipeline=3)]
        so_far = (await client.get("/v1/requests/mine/timeline")).json()
        assert [segment["state"] for segment in so_far["segments"]] == ["gateway", "queued", "prefill"]
        engine.parts = []
        await asyncio.sleep(0.01)  # the request lasts longer than its job, which takes 3 ms here
        gate.set()
        answer_id = (await asked).json()["id"]
        kept.jobs_ended([timeline_of(submit.job_id)])
        for name in ("mine", answer_id):
            report = (await client.get(f"/v1/requests/{name}/timeline")).json()
            assert (report["request_id"], report["trace_id"]) == ("mine", TRACE_ID)
            assert report["segments"][-1]["state"] == "sending"
            assert report["segments"][-1]["end_s"] == report["total_s"] > 0.003
            assert report["choices"][0]["segments"] == report["segments"]
            assert report["choices"][0]["demotions"] == [{"at_s": 0.003, "level": 2}]
            assert report["segments"][1]["displaced_by"] == ["other"]
            assert report["segments"][2]["displaced_by"] is None
        assert (await client.get("/v1/requests/nothing/timeline")).status_code == 404
        for bad in ("format=svg", "format="):
            refused = await client.get(f"/v1/requests/mine/timeline?{bad}")
            assert refused.status_code == 400 and refused.json()["error"]["param"] == "format"


async def test_a_window_has_the_ended_the_unfinished_and_the_iterations(
    engine: FakeEngine, tokenizer: Tokenizer
) -> None:
    kept = KeptTimelines(10)
    kept.elsewhere_ended(RequestEnded("mine", "cmpl-1", None, 0.003, [timeline_of(1)]))
    sample = IterationSample(2.0, 4, 7, 9, 10, 20, 5, 30, 2, 3, 0.25)
    unfinished = msgspec.structs.replace(timeline_of(2, "second", finish=None), pipeline=1)
    engine.parts = [Timelines([unfinished], [sample], 6, 1)]
    async with client_of(make_app(engine, tokenizer, timelines=kept)) as client:
        window = (await client.get("/v1/timeline?seconds=10")).json()
        trace = (await client.get("/v1/timeline?format=perfetto")).json()
        refused = await client.get("/v1/timeline?seconds=0")
    assert {(each["request_id"], each["finish_reason"], each["pipeline"]) for each in window["requests"]} == {
        ("mine", "length", 0), ("second", None, 1),
    }  # fmt: skip
    assert window["limits"] == {"requests": 10, "samples": 8192, "left_out": 6}
    (told,) = window["samples"]
    assert told["at_s"] == pytest.approx(window["end_s"] - 2.0)
    assert (told["swap_out_blocks"], told["swap_in_blocks"], told["pipeline"]) == (2, 3, 1)
    assert window["end_s"] - window["start_s"] == pytest.approx(10)
    kinds = {(event["ph"], event["name"]) for event in trace["traceEvents"]}
    assert {("X", "queued Q2"), ("X", "gateway"), ("i", "first token"), ("i", "demoted to Q3")} <= kinds
    assert {("C", "device blocks"), ("C", "batch"), ("M", "process_name")} <= kinds
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "seconds"


async def test_each_key_sees_its_own_and_nobody_elses_names(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    kept = KeptTimelines(10)
    kept.elsewhere_ended(RequestEnded("mine", "cmpl-1", "alice", 0.003, [timeline_of(1)]))
    unfinished = f"/v1/requests/cmpl-{7:016x}/timeline"
    engine.parts = [Timelines([timeline_of(7, finish=None)])]
    keyring = ring(key("alice"), key("bob"), key("root", admin=True))
    paths = ("/v1/requests/mine/timeline", unfinished, "/v1/timeline")
    async with client_of(make_app(engine, tokenizer, timelines=kept, keyring=keyring)) as client:
        found = {
            (who, path): await client.get(path, headers=bearer(who))
            for who, path in product(("alice", "bob", "root"), paths)
        }
    statuses = {who: [found[who, path].status_code for path in paths] for who in ("alice", "bob", "root")}
    assert statuses == {"alice": [200, 404, 403], "bob": [404, 404, 403], "root": [200, 200, 200]}
    names = [found[who, paths[0]].json()["segments"][1]["displaced_by"] for who in ("alice", "root")]
    assert names == [[], ["other"]]


async def test_the_window_is_not_for_whoever_reaches_an_open_address(
    engine: FakeEngine, tokenizer: Tokenizer
) -> None:
    async with client_of(make_app(engine, tokenizer, host="0.0.0.0")) as client:
        assert (await client.get("/v1/timeline")).status_code == 403
