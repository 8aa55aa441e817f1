"""`skipjoin top`: one frame, the live view, and what it says when there is none."""

import asyncio
import json
from typing import Any

import pytest
from rich.console import Console

from deploy.top_frame import frame
from services.gateway.board import Board
from services.gateway.open_requests import OpenRequests
from services.gateway.pipeline_view import PipelineView
from services.gateway.tokenizer import Tokenizer
from tests.deploy.commands import Terminal, run
from tests.gateway.boards import Pipelines
from tests.gateway.fakes import FakeEngine
from tests.gateway.server import served
from tests.gateway.test_keys import key, ring


async def test_one_frame(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    engine.views = Pipelines(1000)
    async with served(engine, tokenizer) as url:
        status, out, err = await run("top", "--once", "--url", url)
    assert (status, err) == (0, "")
    for text in (
        "skip-join, 320 tokens/s", "1000 unfinished", "first token 250 ms, 1.8 s; between tokens 50 ms",
        "614 held, 40 moving, 0 cached of 1024", "90% busy", "2 running, 123 preempted, 164 waiting",
    ):  # fmt: skip
        assert text in out, text


@pytest.mark.parametrize(("width", "height"), [(60, 24), (80, 24), (110, 40), (200, None)])
@pytest.mark.parametrize(("jobs", "count"), [(0, 1), (20, 1), (1000, 1), (1000, 3)])
async def test_a_frame_fits_the_terminal(
    engine: FakeEngine, width: int, height: int | None, jobs: int, count: int
) -> None:
    engine.views = Pipelines(jobs, count)
    snapshot: Any = json.loads(await Board(engine, OpenRequests()).once())
    console = Console(width=width, record=True, force_terminal=False)
    with console.capture() as shown:
        console.print(frame(snapshot, "http://127.0.0.1:8000", width, height))
    lines = shown.get().splitlines()
    assert all(len(line) <= width for line in lines)
    if width >= 80:  # else the counts go over two lines
        assert sum(line.startswith("Q1 ") for line in lines) == count
        queues = [line for line in lines if line.startswith("Q")]
        assert all("running" in line or "waiting" in line or "empty" in line for line in queues)


async def test_it_is_live_comes_back_and_leaves_with_q(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    engine.views = Pipelines(20)
    async with (
        served(engine, tokenizer) as url,
        Terminal.of("top", "--url", url, TERM="xterm", COLUMNS="110", LINES="40") as terminal,
    ):
        await terminal.until("20 unfinished")
        engine.views = Pipelines(1000)
        await terminal.until("1000 unfinished")
        engine.draining = True
        await terminal.until("the server has ended the stream; trying again in 1 s")
        engine.draining = False
        engine.views = lambda: [PipelineView(0, "the scheduler is \x1b]0;loading\x07")]
        await terminal.until("does not serve: the scheduler is \ufffd]0;loading\ufffd")
        terminal.type("xq")
        assert await asyncio.wait_for(terminal.process.wait(), 30) == 0


async def test_ctrl_c_leaves_too_while_the_server_is_away(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    async with Terminal.of("top", "--url", "http://127.0.0.1:1", TERM="xterm", COLUMNS="200") as terminal:
        await terminal.until("nothing answers at http://127.0.0.1:1: start it with `skipjoin serve`")
        terminal.interrupt()
        assert await asyncio.wait_for(terminal.process.wait(), 30) == 0
        assert "Traceback" not in terminal.shown


async def test_who_may_not_watch_is_told_why(engine: FakeEngine, tokenizer: Tokenizer) -> None:
    status, _, err = await run("top", "--once", "--url", "http://127.0.0.1:1")
    assert status == 1 and "skipjoin serve" in err
    keys = ring(key("alice"), key("root", admin=True))
    async with served(engine, tokenizer, keyring=keys) as url:
        status, _, err = await run("top", "--url", url, "--api-key", "alice")
        assert status == 1 and "admin key" in err
        async with Terminal.of(
            "top", "--url", url, "--api-key", "alice", TERM="xterm", COLUMNS="200"
        ) as terminal:
            await terminal.until("it needs an admin key")
            assert await asyncio.wait_for(terminal.process.wait(), 30) == 1
        assert (await run("top", "--once", "--url", url, "--api-key", "root"))[0] == 0
