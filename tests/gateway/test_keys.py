"""API keys: who is let in, with what limits, on whose account, and what is never written down."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import yaml

from deploy.cli import main
from services.gateway.keys import Access, Key, Keyring, digest, load
from services.gateway.tokenizer import Tokenizer
from shared.clock import VirtualClock
from shared.config import GatewayConfig, parse
from shared.errors import ConfigError, Overloaded
from tests.gateway.fakes import MODEL, FakeEngine, client_of, make_app
from tests.gateway.server import served

COMPLETION = {"model": MODEL, "prompt": "hi", "max_tokens": 5}
PATH = "/v1/completions"


def key(secret: str, **fields: Any) -> Key:
    return Key(fields.pop("name", secret), digest(secret), **fields)


def ring(*keys: Key) -> Keyring:
    return Keyring(keys, VirtualClock())


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


@pytest.mark.parametrize("given", [{}, bearer("wrong"), bearer(""), {"authorization": "Basic alice"}])
async def test_without_a_known_key_nothing_but_health_is_answered(
    engine: FakeEngine, tokenizer: Tokenizer, given: dict[str, str]
) -> None:
    async with client_of(make_app(engine, tokenizer, keyring=ring(key("alice")))) as client:
        for path in ("/health", "/ready"):
            assert (await client.get(path, headers=given)).status_code == 200
        for path in ("/v1/models", "/metrics", "/openapi.json", "/v1/nothing"):
            assert (await client.get(path, headers=given)).status_code == 401
        answer = await client.post(PATH, json=COMPLETION, headers=given)
        assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert (await client.post(PATH, json=COMPLETION, headers=bearer("alice"))).status_code == 200
    assert len(engine.submitted) == 1


async def test_the_official_client_with_and_without_its_key(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    keyring = ring(key("alice"), key("bob", requests_per_minute=1))
    async with served(engine, tokenizer, keyring=keyring) as url:
        for secret, error in (("alice", None), ("eve", openai.AuthenticationError), ("bob", None)):
            async with openai.AsyncOpenAI(base_url=url, api_key=secret, max_retries=0) as client:
                if error is not None:
                    with pytest.raises(error):
                        await client.models.list()
                else:
                    assert (await client.completions.create(model=MODEL, prompt="hi", max_tokens=5)).choices
        async with openai.AsyncOpenAI(base_url=url, api_key="bob", max_retries=0) as client:
            with pytest.raises(openai.RateLimitError, match="requests_per_minute"):
                await client.completions.create(model=MODEL, prompt="hi", max_tokens=5)


def test_requests_per_minute_in_any_minute() -> None:
    clock = VirtualClock()
    access = Access(key("alice", requests_per_minute=2), clock)
    for _ in range(3):
        access.begin()
        clock.advance(20)
        access.begin()
        clock.advance(20)
        with pytest.raises(Overloaded, match="limit is 2") as refused:
            access.begin()
        assert refused.value.retry_after == pytest.approx(20)
        clock.advance(40)


async def test_concurrent_requests_are_counted_until_the_answer_ends(
    engine: FakeEngine, tokenizer: Tokenizer
) -> None:
    release = asyncio.Event()
    engine.script = [release, [5]]
    keyring = ring(key("alice", concurrent_requests=1), key("bob"))
    async with client_of(make_app(engine, tokenizer, keyring=keyring)) as client:
        first = asyncio.create_task(
            client.post(PATH, json=COMPLETION | {"stream": True}, headers=bearer("alice"))
        )
        await engine.waiting.wait()
        refused = await client.post(PATH, json=COMPLETION, headers=bearer("alice"))
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        release.set()
        assert (await client.post(PATH, json=COMPLETION, headers=bearer("bob"))).status_code == 200
        await first
        assert (await client.post(PATH, json=COMPLETION, headers=bearer("alice"))).status_code == 200


async def test_a_refused_request_is_not_counted_as_under_way(
    engine: FakeEngine, tokenizer: Tokenizer
) -> None:
    keyring = ring(key("alice", concurrent_requests=1))
    async with client_of(make_app(engine, tokenizer, keyring=keyring)) as client:
        for _ in range(2):
            bad = await client.post(PATH, json=COMPLETION | {"max_tokens": 9999}, headers=bearer("alice"))
            assert bad.status_code == 400


@pytest.mark.parametrize(("tenant", "counts"), [("team", "team"), (None, "someone")])
async def test_the_tenant_is_the_keys(
    engine: FakeEngine, tokenizer: Tokenizer, tenant: str | None, counts: str
) -> None:
    async with client_of(make_app(engine, tokenizer, keyring=ring(key("alice", tenant=tenant)))) as client:
        await client.post(PATH, json=COMPLETION | {"user": "someone"}, headers=bearer("alice"))
    assert engine.submitted[0].tenant == counts


def test_skipjoin_key_makes_an_entry_that_lets_its_key_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys.yaml"
    secrets: list[str] = []
    for name in ("alice", "bob"):
        assert main(["key", name, "--tenant", "team", "--concurrent-requests", "3", "--admin"]) == 0
        out, err = capsys.readouterr()
        secrets.append(err.strip().rpartition(" ")[2])
        assert secrets[-1] not in out and len(secrets[-1]) > 40
        with file.open("a") as entries:
            entries.write(out)
    keys = load(file)
    assert [each.name for each in keys] == ["alice", "bob"]
    assert keys[0] == Key("alice", digest(secrets[0]), "team", None, 3, True)
    found = ring(*keys).find(secrets[1])
    assert found and found.key.name == "bob"
    file.write_text(json.dumps(yaml.safe_load(file.read_text())))
    assert load(file) == keys
    assert main(["key", "x", "--requests-per-minute", "0"]) == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "no keys"),
        ("{", "cannot be read"),
        ("- name: a", "sha256"),
        ("- {name: a, sha256: secret}", "sha256"),
        (f"- {{name: a, sha256: {digest('a')}, admn: true}}", "admn"),
        (
            f"- {{name: a, sha256: {digest('a')}}}\n- {{name: a, sha256: {digest('b')}}}",
            "name a occurs twice",
        ),
        (f"- {{name: a, sha256: {digest('a')}}}\n- {{name: b, sha256: {digest('a')}}}", "occurs twice"),
    ],
)
def test_a_keys_file_that_cannot_be_used_is_named(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=says) as refused:
        load(file)
    assert str(refused.value).startswith("gateway.keys_file")


def test_a_missing_keys_file_is_no_open_door(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="keys_file"):
        load(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("host", "keys_file", "exposed"),
    [
        ("127.0.0.1", None, False),
        ("::1", None, False),
        ("localhost", None, False),
        ("0.0.0.0", None, True),
        ("0.0.0.0", "keys.yaml", False),
        ("gpu-7", None, True),
    ],
)
def test_listening_for_everybody_without_keys_is_noticed(
    host: str, keys_file: str | None, exposed: bool
) -> None:
    assert GatewayConfig(host=host, keys_file=keys_file).exposed == exposed


async def test_no_secret_is_logged(
    engine: FakeEngine, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    engine.refusal = KeyError("a defect")
    async with (
        served(engine, tokenizer, keyring=ring(key("alice-secret", name="alice"))) as url,
        httpx.AsyncClient(base_url=url) as client,
    ):
        for secret in ("alice-secret", "wrong-secret"):
            answer = await client.post("/completions", json=COMPLETION, headers=bearer(secret))
            assert answer.status_code in (401, 500) and "secret" not in answer.text
    assert "a defect" in caplog.text and "-secret" not in caplog.text


async def test_browsers_may_ask_only_from_the_origins_named(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    page = {"origin": "https://chat.example", "access-control-request-method": "POST"}
    page["access-control-request-headers"] = "authorization,content-type"
    origins = parse({"gateway": {"cors_origins": ["https://chat.example"]}}).gateway.cors_origins
    app = make_app(engine, tokenizer, keyring=ring(key("alice")), cors_origins=origins)
    async with client_of(app) as client:
        asked = await client.options(PATH, headers=page)
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] == "https://chat.example"
        other = await client.options(PATH, headers=page | {"origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers
        answer = await client.post(PATH, json=COMPLETION, headers={**page, **bearer("alice")})
        assert answer.headers["access-control-allow-origin"] == "https://chat.example"
    async with client_of(make_app(engine, tokenizer)) as client:
        assert "access-control-allow-origin" not in (await client.get("/v1/models", headers=page)).headers
