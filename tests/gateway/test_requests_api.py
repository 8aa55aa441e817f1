"""Requests by their id: the header, what is told of them, who may ask, and cancelling them."""

import asyncio
import re
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any, Literal, cast

import httpx
import msgspec
import pytest

from services.gateway.choices import Choices
from services.gateway.interruption import Interruption
from services.gateway.open_requests import MOST_TOLD, OpenRequest, OpenRequests
from services.gateway.service import GatewayService
from services.gateway.tokenizer import Tokenizer
from shared.ids import JobId
from shared.messages import AskRequests, Explanation, JobEvent
from shared.messages import JobEventKind as Kind
from tests.application import Application
from tests.gateway.fakes import MODEL, FakeEngine, client_of, events_of, make_app
from tests.gateway.test_keys import bearer, key, ring

COMPLETION: dict[str, Any] = {"model": MODEL, "prompt": "hi", "max_tokens": 5}
PATH = "/v1/completions"


class Gate(asyncio.Event):
    """An event that also tells when it is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = asyncio.Event()

    async def wait(self) -> Literal[True]:
        self.reached.set()
        return await super().wait()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("header", "field", "echoed"),
    [
        ("abc-1", None, "abc-1"),
        (None, "from-body", "from-body"),
        ("abc-1", "from-body", "from-body"),
        (None, None, "req-[0-9a-f]{24}"),
        ("with space", None, "req-[0-9a-f]{24}"),
        ("x" * 129, None, "req-[0-9a-f]{24}"),
    ],
)
async def test_the_id_comes_back_as_a_header(
    engine: FakeEngine,
    tokenizer: Tokenizer,
    stream: bool,
    header: str | None,
    field: str | None,
    echoed: str,
) -> None:
    headers = {"X-Request-Id": header} if header else {}
    async with client_of(make_app(engine, tokenizer)) as client:
        answer = await client.post(
            PATH, json=COMPLETION | {"request_id": field, "stream": stream}, headers=headers
        )
        assert answer.status_code == 200
        assert [
            re.fullmatch(echoed, each) is not None for each in answer.headers.get_list("x-request-id")
        ] == [True]
        refused = await client.post(PATH, json=COMPLETION | {"max_tokens": 0}, headers=headers)
        assert refused.status_code == 400 and refused.headers["x-request-id"]


@pytest.mark.parametrize("bad", ["", "two words", "é", "x" * 129, "a\nb", 5])
async def test_an_id_that_is_no_header_is_refused(engine: FakeEngine, tokenizer: Tokenizer, bad: Any) -> None:
    async with client_of(make_app(engine, tokenizer)) as client:
        answer = await client.post(PATH, json=COMPLETION | {"request_id": bad})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "request_id"


def preempted(job: int, other: int) -> Explanation:
    events = [JobEvent(Kind.STARTED, 0.5, 1), JobEvent(Kind.PREEMPTED, 2.0, 1, JobId(other))]
    counts = {"joined": 1, "started": 1, "demoted": 2, "preempted": 1}
    spent = {"waiting": 0.5, "running": 1.5, "preempted": 4.0}
    return Explanation(JobId(job), True, events, 2, "preempted", 3, 1.5, counts, spent)


async def test_a_request_is_explained_while_it_waits_and_after_its_end(
    engine: FakeEngine, tokenizer: Tokenizer
) -> None:
    gates = [Gate(), Gate()]
    engine.scripts = [[[5], gate, [6]] for gate in gates]
    async with client_of(make_app(engine, tokenizer)) as client:
        asked = asyncio.create_task(client.post(PATH, json=COMPLETION | {"request_id": "mine", "n": 2}))
        for gate in gates:
            await gate.reached.wait()
        jobs = [submit.job_id for submit in engine.submitted]
        engine.explanations = {jobs[0]: preempted(jobs[0], 9), jobs[1]: Explanation(jobs[1], found=False)}
        (listed,) = (await client.get("/v1/requests")).json()["data"]
        assert (listed["id"], listed["endpoint"], listed["ended"]) == ("mine", PATH, False)
        assert (listed["prompt_tokens"], listed["completion_tokens"]) == (len(engine.submitted[0].prompt), 2)

        for name in ("mine", listed["answer_id"]):
            report = (await client.get(f"/v1/requests/{name}")).json()
            assert {name: report[name] for name in listed} == listed
            first, second = report["choices"]
            assert (first["state"], first["queue"], first["runs_in_s"]) == ("preempted", "Q4", 1.5)
            assert (first["demotions"], first["promotions"], first["preemptions"]) == (2, 0, 1)
            assert first["seconds"] == {"waiting": 0.5, "running": 1.5, "preempted": 4.0}
            assert "job 0000000000000009 runs in its place" in first["why"] and "1.5 s" in first["why"]
            assert second["state"] == "unknown"
        for gate in gates:
            gate.set()
        answer = (await asked).json()
        assert answer["id"] == listed["answer_id"]
        assert (await client.get("/v1/requests")).json()["data"] == []
        ended = (await client.get("/v1/requests/mine")).json()
        assert ended["ended"] and ended["completion_tokens"] == 4
        assert (await client.delete("/v1/requests/mine")).status_code == 410


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("by", ["request_id", "answer_id"])
async def test_a_request_is_cancelled_by_its_id(
    engine: FakeEngine, tokenizer: Tokenizer, stream: bool, by: str
) -> None:
    engine.script = [[5], asyncio.Event(), [6]]
    async with client_of(make_app(engine, tokenizer)) as client:
        asked = asyncio.create_task(
            client.post(
                PATH, json=COMPLETION | {"request_id": "mine", "stream": stream, "n": 1 if stream else 2}
            )
        )
        await engine.waiting.wait()
        name = "mine" if by == "request_id" else f"cmpl-{engine.submitted[0].job_id:016x}"
        cancelled = await client.delete(f"/v1/requests/{name}")
        assert cancelled.json() == {"id": name, "object": "request.cancelled", "cancelled": True}
        answer = await asked
        assert sorted(engine.aborted) == sorted(submit.job_id for submit in engine.submitted)
        if stream:
            *_, failure, done = events_of(answer.text)
            assert failure["error"]["code"] == "request_cancelled" and done == "[DONE]"
        else:
            assert answer.status_code == 499 and answer.json()["error"]["code"] == "request_cancelled"
        for method in ("GET", "DELETE"):
            assert (await client.request(method, "/v1/requests/nothing")).status_code == 404


async def test_each_key_sees_its_own_and_the_admin_all(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    engine.script = [[5], asyncio.Event(), [6]]
    keyring = ring(key("alice"), key("bob"), key("root", admin=True))
    async with client_of(make_app(engine, tokenizer, keyring=keyring)) as client:
        body = COMPLETION | {"request_id": "mine"}
        asked = asyncio.create_task(client.post(PATH, json=body, headers=bearer("alice")))
        await engine.waiting.wait()
        job = engine.submitted[0].job_id
        engine.explanations[job] = preempted(job, 9)
        engine.explanations[7] = preempted(7, 9)  # of another gateway
        elsewhere = f"/v1/requests/cmpl-{7:016x}"

        statuses = {
            who: [
                (await client.get(path, headers=bearer(who))).status_code
                for path in ("/v1/requests", "/v1/requests/mine", elsewhere)
            ]
            for who in ("alice", "bob", "root")
        }
        assert statuses == {"alice": [403, 200, 404], "bob": [403, 404, 404], "root": [200, 200, 200]}
        why = (await client.get("/v1/requests/mine", headers=bearer("alice"))).json()["choices"][0]["why"]
        assert "other jobs run" in why and "9" not in why
        assert (await client.delete("/v1/requests/mine", headers=bearer("bob"))).status_code == 404
        assert (await client.delete("/v1/requests/mine", headers=bearer("root"))).status_code == 200
        assert (await asked).status_code == 499


async def test_the_list_is_not_for_whoever_reaches_an_open_address(
    engine: FakeEngine, tokenizer: Tokenizer
) -> None:
    async with client_of(make_app(engine, tokenizer, host="0.0.0.0")) as client:
        refused = await client.get("/v1/requests")
    assert refused.status_code == 403 and "no API keys" in refused.json()["error"]["message"]


def open_request(request_id: str, key: str | None, *jobs: int) -> OpenRequest:
    choices = cast(Choices, SimpleNamespace(prompt_tokens=3, completion_tokens=1, finishes=("stop",)))
    return OpenRequest(
        request_id, f"cmpl-{jobs[0]:016x}", PATH, key, [JobId(job) for job in jobs], choices, Interruption()
    )


async def test_requests_of_other_gateways_are_seen_by_those_who_may(
    engine: FakeEngine, tokenizer: Tokenizer
) -> None:
    others = OpenRequests()
    for request in (open_request("hers", "alice", 7, 8), open_request("his", "bob", 9)):
        others.add(request)
    ended = open_request("hers", "alice", 10)
    others.add(ended)
    others.close(ended)
    engine.elsewhere = [OpenRequests(), others]
    engine.explanations = {job: preempted(job, 9) for job in (7, 8, 9)}
    keyring = ring(key("alice"), key("bob"), key("root", admin=True))
    async with client_of(make_app(engine, tokenizer, keyring=keyring)) as client:
        listed = (await client.get("/v1/requests", headers=bearer("root"))).json()
        assert [each["id"] for each in listed["data"]] == ["hers", "his"] and listed["left_out"] == 0
        report = (await client.get("/v1/requests/hers", headers=bearer("alice"))).json()
        assert (report["answer_id"], len(report["choices"])) == (f"cmpl-{7:016x}", 2)
        assert (await client.get("/v1/requests/his", headers=bearer("alice"))).status_code == 404
        assert (await client.delete("/v1/requests/his", headers=bearer("alice"))).status_code == 404
        assert engine.aborted == []
        assert (await client.delete("/v1/requests/hers", headers=bearer("alice"))).status_code == 200
        assert engine.aborted == [7, 8]
        gone = await client.delete(f"/v1/requests/cmpl-{10:016x}", headers=bearer("root"))
        assert gone.status_code == 410


def test_a_list_for_another_gateway_fits_into_a_message() -> None:
    requests = OpenRequests()
    for number in range(MOST_TOLD + 5):
        requests.add(open_request("x" * 128, "k" * 64, number))
    told = requests.tell(AskRequests())
    assert (len(told.requests), told.left_out) == (MOST_TOLD, 5)
    assert len(msgspec.msgpack.encode(told)) < 1024 * 1024
    assert len(requests.tell(AskRequests("x" * 128)).requests) == 100


@pytest.mark.parametrize("named_by", ["answer", "client"])
async def test_every_gateway_finds_and_cancels_a_request(named_by: str) -> None:
    """The whole application, and a second gateway beside it."""
    async with Application(scheduler={"max_batch_size": 1}) as app:
        other = GatewayService(app.config)
        await other.start()
        hellos = await other.bus.subscribe(other.bus.subjects.schedulers)
        while not other._engine.ready[0]:
            await hellos.next()
        hellos = await other.bus.subscribe(other.bus.subjects.hello("gateway"))
        while not other._engine._gateways.others(other.clock.now()):
            await hellos.next()
        body = app.completion("Once upon a time", 1000, stream=True)
        transport = httpx.ASGITransport(other.api)
        async with (
            httpx.AsyncClient(transport=transport, base_url="http://other") as beside,
            app.http.stream("POST", PATH, json=body | {"request_id": "first"}) as first,
            app.http.stream("POST", PATH, json=body | {"request_id": "second"}) as second,
        ):
            names: list[str] = []
            async with aclosing(first.aiter_lines()) as lines, aclosing(second.aiter_lines()) as more:
                for each in (lines, more):
                    text = await anext(each)
                    names.append(text.split('"id":"')[1].split('"')[0])
                listed = (await beside.get("/v1/requests")).json()["data"]
                assert [(each["id"], each["answer_id"]) for each in listed] == [
                    ("first", names[0]), ("second", names[1])
                ]  # fmt: skip
                names = names if named_by == "answer" else ["first", "second"]
                reports = [(await beside.get(f"/v1/requests/{name}")).json() for name in names]
                for report in reports:
                    (choice,) = report["choices"]
                    assert choice["state"] in ("running", "preempted") and choice["queue"].startswith("Q")
                    assert choice["seconds"]["running"] > 0
                waiting = [
                    each["choices"][0] for each in reports if each["choices"][0]["state"] == "preempted"
                ]
                assert all("in its place" in choice["why"] for choice in waiting)
                for name in names:
                    timeline = (await beside.get(f"/v1/requests/{name}/timeline")).json()
                    assert timeline["segments"][-1]["state"] != "gateway"
                for name in names:
                    assert (await beside.delete(f"/v1/requests/{name}")).status_code == 200
                ends = [[line async for line in each if line] for each in (lines, more)]
            for end in ends:
                assert "request_cancelled" in end[-2] and end[-1] == "data: [DONE]"
            for name in names:
                assert (await beside.get(f"/v1/requests/{name}")).json()["ended"]
                assert (await beside.delete(f"/v1/requests/{name}")).status_code == 410
        await app.settled()
        await other.stop()
