"""Prompts are as long as asked for, whatever counts, and share no prefix."""

import itertools
from typing import Any

import pytest

from loadgen.bench.client import session
from loadgen.bench.probe import ProbeError, probe
from loadgen.bench.prompts import FileCounter, Prompts, WordCounter, learn
from loadgen.bench.settings import Target
from loadgen.stub_server import DONE, Send, StubServer, served, token, usage
from services.stage.checkpoint import resolve
from shared.config import ModelConfig
from shared.errors import ConfigError

LENGTHS = (1, 2, 5, 17, 32, 256, 1000)


async def test_exact_by_the_models_own_tokenizer() -> None:
    counter = FileCounter(str(resolve(ModelConfig(), lambda text, fraction: None)))
    prompts = Prompts(await learn(counter))
    for tokens, number in itertools.product(LENGTHS, range(20)):
        assert await counter.count(prompts.text(tokens, (number,))) == tokens
    said = prompts.text(20, (0,))
    more = prompts.text(12, (1,), following=True)
    assert await counter.count(said + more) == 32


async def test_seeded_and_without_common_beginnings() -> None:
    prompts = Prompts(await learn(WordCounter()))
    texts = [prompts.text(40, (0, number)) for number in range(500)]
    assert len({tuple(text.split()[:5]) for text in texts}) == 500
    assert texts[7] == prompts.text(40, (0, 7)) != prompts.text(40, (1, 7))


async def test_what_the_server_adds_is_taken_off() -> None:
    prompts = Prompts(await learn(WordCounter()), added=9)
    assert await WordCounter().count(prompts.text(32, (0,))) == 23
    assert await WordCounter().count(prompts.text(5, (0,))) == 1  # there is nothing shorter


async def test_a_tokenizer_that_cannot_be_read() -> None:
    with pytest.raises(ConfigError, match=r"tokenizer: /nowhere.* cannot be read"):
        FileCounter("/nowhere")


# ---------------------------------------------------------------- probing


def counting(added: int, unknown: tuple[str, ...] = ()) -> StubServer:
    """A server whose usage counts words and punctuation, and a template of its own."""

    async def script(body: dict[str, Any], send: Send) -> None:
        text = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
        words = await WordCounter().count(text) + added
        await send(token(finish="length") + usage(words, body["max_tokens"]) + DONE)

    def refuse(body: dict[str, Any]) -> tuple[int, dict[str, Any]] | None:
        found = [name for name in unknown if name in body]
        return (422, {"detail": f"unexpected {found}"}) if found else None

    return StubServer(script, refuse)


@pytest.mark.parametrize(
    ("unknown", "ignore_eos", "token_ids"),
    [
        ((), True, True),
        (("return_token_ids",), True, False),
        (("ignore_eos",), False, True),
        (("ignore_eos", "return_token_ids"), False, False),
    ],
)
@pytest.mark.parametrize("api", ["completions", "chat"])
async def test_a_server_gets_the_fields_that_it_takes(
    unknown: tuple[str, ...], ignore_eos: bool, token_ids: bool, api: Any
) -> None:
    server = counting(13, unknown)
    async with served(server) as url, session(url, Target(url=url)) as http:
        found = await probe(http, url, Target(url=url, api=api, body={"top_k": 1}))
    assert (found.endpoint.ignore_eos, found.endpoint.token_ids) == (ignore_eos, token_ids)
    assert (found.notes["prompt_tokens_added"], found.notes["prompts_exact"]) == (13, True)
    assert found.prompts.added == 13
    assert found.endpoint.model == "stub"
    assert all(body["top_k"] == 1 for body in server.seen)


async def test_what_a_target_insists_on_must_be_taken() -> None:
    async with served(counting(0, ("ignore_eos",))) as url, session(url, Target(url=url)) as http:
        with pytest.raises(ProbeError, match="unexpected"):
            await probe(http, url, Target(url=url, ignore_eos=True))


async def test_a_server_that_is_none() -> None:
    async with served(StubServer()) as url:
        pass
    async with session(url, Target(url=url)) as http:
        with pytest.raises(ProbeError, match="no answer"):
            await probe(http, url, Target(url=url))


async def test_a_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(url="http://127.0.0.1", key_variable="A_KEY")
    monkeypatch.delenv("A_KEY", raising=False)
    with pytest.raises(ConfigError, match="A_KEY"):
        async with session("http://127.0.0.1", target):
            pass
    monkeypatch.setenv("A_KEY", "secret")
    async with session("http://127.0.0.1", target) as http:
        assert http.headers["Authorization"] == "Bearer secret"
