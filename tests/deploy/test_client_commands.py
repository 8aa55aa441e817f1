"""`skipjoin chat`, `complete`, `requests`, `models` and `scale` against a gateway on a real socket."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from deploy.cli import main
from services.gateway.pipelines import PipelineState
from services.gateway.timelines import KeptTimelines
from services.gateway.tokenizer import Tokenizer
from shared.errors import GenerationFailed, NotReady
from shared.messages import FinishReason, RequestEnded
from tests.deploy.commands import Terminal, run
from tests.gateway.fakes import FakeEngine
from tests.gateway.server import served
from tests.gateway.test_keys import key, ring
from tests.gateway.test_requests_api import preempted
from tests.gateway.test_timeline import timeline_of


@pytest.fixture
async def url(engine: FakeEngine, tokenizer: Tokenizer) -> AsyncIterator[str]:
    async with served(engine, tokenizer) as url:
        yield url


async def test_complete_prints_what_follows(engine: FakeEngine, url: str) -> None:
    engine.say("héllo 🎉")
    status, out, err = await run(
        "complete",
        "Once",
        "--url",
        url,
        "--max-tokens",
        "9",
        "--temperature",
        "0",
        "--stop",
        "xx",
        "--seed",
        "4",
    )
    assert (status, out, err) == (0, "héllo 🎉\n", "")
    (submit,) = engine.submitted
    assert (submit.max_tokens, submit.sampling.temperature, submit.sampling.seed) == (9, 0.0, 4)


async def test_complete_reads_standard_input_and_the_environment(engine: FakeEngine, url: str) -> None:
    status, out, _ = await run("complete", "-", "--echo", typed="from a file", SKIPJOIN_URL=url)
    assert (status, out) == (0, "from a filehello there\n")


async def test_failures_are_one_line_and_a_status(engine: FakeEngine, url: str) -> None:
    engine.refusal = NotReady("no scheduler")
    status, out, err = await run("complete", "x", "--url", url)
    assert (status, out.strip()) == (1, "") and err.startswith("skipjoin: not ready: no scheduler")
    engine.refusal, engine.script = None, [[5], GenerationFailed("stage 0 died")]
    status, _, err = await run("complete", "x", "--url", url)
    assert status == 1 and "stage 0 died" in err and "Traceback" not in err
    status, _, err = await run("complete", "x", "--url", url, "--max-tokens", "0")
    assert status == 1 and "max_tokens" in err
    for command in ("models", "requests", "chat"):
        status, _, err = await run(command, "--url", "http://127.0.0.1:1")
        assert status == 1 and "skipjoin serve" in err and "Traceback" not in err


async def test_models_and_requests(engine: FakeEngine, url: str) -> None:
    assert "tiny" in (await run("models", "--url", url))[1]
    gate = asyncio.Event()
    engine.script = [[5], gate, [6]]
    asking = asyncio.create_task(run("complete", "x", "--url", url))
    await engine.waiting.wait()
    job = engine.submitted[0].job_id
    engine.explanations = {job: preempted(job, 9)}
    name = f"cmpl-{job:016x}"
    _, listing, _ = await run("requests", "--url", url)
    assert "1 unfinished" in listing and name in listing
    _, explained, _ = await run("requests", name, "--url", url)
    assert "preempted" in explained and "Q4" in explained and "runs in its place" in explained
    assert (await run("requests", "--cancel", name, "--url", url))[1] == f"cancelled {name}\n"
    status, _, err = await asking
    assert status == 1 and "cancelled" in err
    status, _, err = await run("requests", "nothing", "--url", url)
    assert status == 1 and "'nothing'" in err


async def test_scale_waits_until_so_many_pipelines_serve(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    first, loading, second = (PipelineState(*each) for each in ((0, "", 1), (1, "loading", 0), (1, "", 0)))

    class Starting:
        """The second one loads when it is listed for the first time, and serves from then on."""

        async def scale(self, replicas: int) -> None:
            assert replicas == 2
            engine.pipelines = Looked([first, loading])

    class Looked(list[PipelineState]):
        def __iter__(self) -> Iterator[PipelineState]:
            engine.pipelines = [first, second]
            return super().__iter__()

    async with served(engine, tokenizer, scaler=Starting()) as url:
        status, out, err = await run("scale", "2", "--url", url)
        assert (status, out) == (0, "2 pipelines serve\n")
        assert [line.split(maxsplit=2)[1:] for line in err.splitlines()] == [
            ["0", "serves"], ["1", "loading"], ["1", "serves"],
        ]  # fmt: skip
        status, _, err = await run("scale", "99", "--url", url)
        assert status == 1 and "parallel.max_replicas" in err


async def test_a_key(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    async with served(engine, tokenizer, keyring=ring(key("alice"))) as url:
        status, _, err = await run("models", "--url", url)
        assert status == 1 and "SKIPJOIN_API_KEY" in err
        assert (await run("models", "--url", url, SKIPJOIN_API_KEY="alice"))[0] == 0
        assert (await run("complete", "x", "--url", url, "--api-key", "alice"))[1] == "hello there\n"


async def test_the_terminal_of_these_tests_shows_what_comes_byte_by_byte() -> None:
    reading, writing = os.pipe()
    terminal = Terminal(Mock(), reading)
    for byte in "more…\r\n> 🎉".encode():
        os.write(writing, bytes([byte]))
        terminal._read()
    os.close(writing)
    os.close(reading)
    assert terminal.shown == "more…\n> 🎉"


async def test_a_chat_streams_and_remembers(engine: FakeEngine, url: str) -> None:
    engine.finish = FinishReason.STOP
    engine.say("first answer", stop_token=1)
    gate = asyncio.Event()
    engine.script.insert(2, gate)
    async with Terminal.of("chat", "--url", url, "--system", "Be kind.", "--temperature", "0") as terminal:
        await terminal.until("> ")
        terminal.type("one\n")
        await terminal.until("fi")  # shown while the rest is not there yet
        gate.set()
        await terminal.until("first answer"[2:])
        await terminal.until("> ")
        engine.say("second", stop_token=1)
        terminal.type("two\\\n")
        await terminal.until("… ")
        terminal.type("lines\n")
        await terminal.until("second")
        await terminal.until("> ")
        prompt = engine._tokenizer.decode(engine.submitted[1].prompt)
        assert prompt.startswith("system: Be kind.\nuser: one\nassistant: first answer\nuser: two\nlines")
        terminal.type("/again\n")
        await terminal.until("second")
        assert engine.submitted[2].prompt == engine.submitted[1].prompt
        await terminal.until("> ")
        terminal.type("/new\n")
        await terminal.until("> ")
        terminal.type("three\n")
        await terminal.until("second")
        assert "one" not in engine._tokenizer.decode(engine.submitted[3].prompt)
        await terminal.until("> ")
        terminal.type("\x04")
        assert await asyncio.wait_for(terminal.process.wait(), 30) == 0


async def test_ctrl_c_stops_the_answer_and_not_the_chat(engine: FakeEngine, url: str) -> None:
    engine.say("unfinished")
    engine.script.insert(3, asyncio.Event())
    async with Terminal.of("chat", "--url", url) as terminal:
        await terminal.until("> ")
        terminal.type("one\n")
        await engine.waiting.wait()
        await terminal.until("u")
        terminal.interrupt()
        await terminal.until("(stopped)")
        await asyncio.wait_for(engine.abort_seen.wait(), 30)
        await terminal.until("> ")
        await terminal.interrupt_line("> ")  # at the prompt it only drops the line
        engine.say("whole", stop_token=1)
        terminal.type("two\n")
        await terminal.until("whole")
        await terminal.until("> ")
        engine.script = [[5], GenerationFailed("stage 0 died")]
        terminal.type("three\n")
        await terminal.until("stage 0 died")
        await terminal.until("> ")
        terminal.type("/quit\n")
        assert await asyncio.wait_for(terminal.process.wait(), 30) == 0


async def test_a_models_text_does_not_command_the_terminal(engine: FakeEngine, url: str) -> None:
    engine.say("a\x1b]0;title\x07b", stop_token=1)
    async with Terminal.of("complete", "x", "--url", url) as terminal:
        assert "\x1b" not in await terminal.until("b")
        assert await asyncio.wait_for(terminal.process.wait(), 30) == 0


@pytest.mark.parametrize(
    "command",
    ["chat", "complete", "requests", "top", "models", "scale", "serve", "config", "key", "profile"],
)
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"skipjoin {command}" in capsys.readouterr().out.partition("example")[2]


async def test_trace_prints_a_timeline_and_writes_it_for_perfetto(
    engine: FakeEngine, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    kept = KeptTimelines(10)
    kept.elsewhere_ended(RequestEnded("mine", "cmpl-1", None, 0.003, [timeline_of(1)]))
    file = tmp_path / "trace.json"
    async with served(engine, tokenizer, timelines=kept) as url:
        status, printed, _ = await run("trace", "mine", "--url", url)
        assert status == 0 and "mine: length after 0.003 s" in printed
        rows = [line for line in printed.splitlines() if "█" in line]
        assert [row.split()[5] for row in rows] == ["gateway", "queued", "prefill"]
        assert "Q2" in rows[1] and "ran meanwhile: other" in rows[1] and "1 iterations" in rows[2]
        assert (await run("trace", "mine", "--url", url, "--perfetto", str(file)))[0] == 0
        assert {event["ph"] for event in json.loads(file.read_text())["traceEvents"]} == {"M", "X", "i"}
        status, _, err = await run("trace", "nothing", "--url", url)
        assert status == 1 and "nothing" in err
        status, _, err = await run("trace", "mine", "--url", url, "--perfetto", str(tmp_path / "no" / "x"))
        assert status == 1 and "--perfetto" in err and "Traceback" not in err
