"""`/v1/pipelines`: what there is, who may ask, and how many there may be."""

import pytest

from services.gateway.pipelines import PipelineState
from services.gateway.tokenizer import Tokenizer
from tests.gateway.fakes import FakeEngine, client_of, make_app
from tests.gateway.test_keys import bearer, key, ring

PATH = "/v1/pipelines"


class Recording:
    def __init__(self) -> None:
        self.asked: list[int] = []

    async def scale(self, replicas: int) -> None:
        self.asked.append(replicas)


async def test_pipelines_are_listed_and_their_number_is_changed(
    engine: FakeEngine, tokenizer: Tokenizer
) -> None:
    engine.pipelines = [PipelineState(0, "", 3), PipelineState(2, "loading", 0)]
    scaler = Recording()
    async with client_of(make_app(engine, tokenizer, scaler=scaler)) as client:
        listed = (await client.get(PATH)).json()["data"]
        assert listed == [
            {"pipeline": 0, "serving": True, "reason": None, "jobs": 3},
            {"pipeline": 2, "serving": False, "reason": "loading", "jobs": 0},
        ]
        answer = await client.post(PATH, json={"replicas": 3})
        assert (answer.status_code, scaler.asked) == (202, [3])


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"replicas": 0}, "replicas"),
        ({"replicas": 9}, "parallel.max_replicas"),
        ({"replicas": "2"}, "replicas"),
        ({"replicas": 2, "now": True}, "now"),
        ({}, "replicas"),
    ],
)
async def test_mistakes_are_named(
    engine: FakeEngine, tokenizer: Tokenizer, body: dict[str, object], named: str
) -> None:
    scaler = Recording()
    async with client_of(make_app(engine, tokenizer, scaler=scaler)) as client:
        answer = await client.post(PATH, json=body)
    assert answer.status_code == 400 and named in answer.json()["error"]["message"]
    assert scaler.asked == []


async def test_only_admins_change_anything(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    scaler = Recording()
    keyring = ring(key("alice"), key("root", admin=True))
    async with client_of(make_app(engine, tokenizer, scaler=scaler, keyring=keyring)) as client:
        for who, status in (("alice", 403), ("root", 202)):
            answer = await client.post(PATH, json={"replicas": 2}, headers=bearer(who))
            assert answer.status_code == status
    async with client_of(make_app(engine, tokenizer, scaler=scaler, host="0.0.0.0")) as client:
        assert (await client.post(PATH, json={"replicas": 2})).status_code == 403
        assert (await client.get(PATH)).status_code == 403
    assert scaler.asked == [2]


async def test_outside_of_ray_serve_nobody_can(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    async with client_of(make_app(engine, tokenizer)) as client:
        assert (await client.post(PATH, json={"replicas": 2})).status_code == 400
