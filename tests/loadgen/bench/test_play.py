"""The client against a server whose answers take scripted times."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from loadgen.bench import measure
from loadgen.bench.client import Client, Endpoint, session
from loadgen.bench.play import UNFINISHED, Player
from loadgen.bench.prompts import Prompts, Vocabulary
from loadgen.bench.record import ABORTED, OK, End, Record
from loadgen.bench.schedule import Ask, Talk
from loadgen.bench.settings import Limits, Target
from loadgen.stub_server import DONE, Send, StubServer, event, served, token, usage

VOCABULARY = Vocabulary(("word",), (1,), ("word",), "words")
STALL_S = 0.4


def talks(count: int, every: float = 0.0, output: int = 1) -> list[Talk]:
    """output + index: so that a script can tell requests apart where it must"""
    return [Talk(i * every, (Ask(i, "all", "", 8, output),)) for i in range(count)]


async def play(
    server: StubServer,
    asked: list[Talk],
    limits: Limits | None = None,
    stop: asyncio.Event | None = None,
    token_ids: bool = False,
) -> tuple[list[Record], End]:
    records: list[Record] = []
    limits = limits or Limits(drain_s=30)
    async with served(server) as url, session(url, Target(url=url)) as http:
        endpoint = Endpoint(url, "stub", "completions", True, token_ids)
        client = Client(http, endpoint, limits.timeout_s)
        player = Player(client, Prompts(VOCABULARY), limits, (0,), records.append, stop or asyncio.Event())
        end = await asyncio.wait_for(player.play(asked), 60)
    return sorted(records, key=lambda record: record.index), end


def answering(answer: Callable[[int, Send], Awaitable[None]]) -> StubServer:
    """answer: gets the number of the request, in the order of their arrival"""
    seen = iter(range(10_000))

    async def script(body: dict[str, Any], send: Send) -> None:
        await answer(next(seen), send)

    return StubServer(script)


async def whole(send: Send, tokens: int = 1) -> None:
    await send(token(finish="length") * tokens + usage(8, tokens) + DONE)


# ---------------------------------------------------------------- when requests are sent


async def test_arrivals_do_not_wait_for_answers() -> None:
    others = asyncio.Event()
    answered = 0

    async def answer(number: int, send: Send) -> None:
        nonlocal answered
        if number == 0:
            await others.wait()  # a client that waited for it would never send those that set this
        await whole(send)
        answered += 1
        if answered == 4:
            others.set()

    records, end = await play(answering(answer), talks(5, every=0.01))
    assert [record.outcome for record in records] == [OK] * 5
    assert records[0].end is not None
    assert all(record.end is not None and record.end < records[0].end for record in records[1:])
    assert not end.aborted


async def test_a_stalled_server_is_in_the_latency_of_everyone_who_was_due_meanwhile() -> None:
    """Coordinated omission: one request at a time, as closed loops have it, sees one slow answer in ten."""

    async def answer(number: int, send: Send) -> None:
        if number == 0:
            await asyncio.sleep(STALL_S)  # the script: everything stands still
        await whole(send)

    records, _ = await play(answering(answer), talks(10, every=0.02), Limits(concurrency=1))
    for record in records:
        assert measure.ttft(record) >= STALL_S - record.scheduled - 0.001
    waited = [record.sent - record.scheduled for record in records if record.sent is not None]
    assert min(waited[1:]) > 0.1  # the last was due at 0.18 s
    served_in = [(record.first or 0) - (record.sent or 0) for record in records[1:]]
    assert sum(served_in) < sum(waited)  # what a closed loop would have reported


async def test_at_most_so_many_are_open() -> None:
    most = open_now = 0

    async def answer(number: int, send: Send) -> None:
        nonlocal most, open_now
        open_now += 1
        most = max(most, open_now)
        await asyncio.sleep(0.01)
        open_now -= 1
        await whole(send)

    records, _ = await play(answering(answer), talks(12), Limits(concurrency=3))
    assert most == 3
    assert len(records) == 12


# ---------------------------------------------------------------- what is read


async def test_chunks_tokens_and_usage() -> None:
    async def answer(number: int, send: Send) -> None:
        await send(token(" a", [5]))
        await asyncio.sleep(0.05)
        await send(token(" b", [6, 7]) + token(" c", [8]))  # one write: one chunk
        await asyncio.sleep(0.05)
        await send(token(" d", [9], finish="length"))
        await send(usage(11, 5) + DONE)

    records, _ = await play(answering(answer), talks(1, output=5), token_ids=True)
    record = records[0]
    assert (record.outcome, record.finish, record.status) == (OK, "length", 200)
    assert (record.prompt, record.output, record.counted_by) == (11, 5, "usage")
    assert record.chunk_tokens == [1, 3, 1]
    gaps = measure.gaps(record)
    assert len(gaps) == 2
    assert min(gaps) > 0.045
    assert record.first == record.arrivals[0]
    assert record.end is not None and record.end >= record.arrivals[-1]


@pytest.mark.parametrize(
    ("parts", "output", "counted_by"),
    [
        ([token(" a", [1, 2]), token(" b", [3], "stop")], 3, "token_ids"),
        ([token(" a"), token(" b", finish="stop")], 2, "chunks"),
    ],
)
async def test_without_usage_tokens_are_counted_otherwise(
    parts: list[bytes], output: int, counted_by: str
) -> None:
    async def answer(number: int, send: Send) -> None:
        for part in parts:
            await send(part)
            await asyncio.sleep(0.05)
        await send(DONE)

    records, _ = await play(answering(answer), talks(1))
    assert (records[0].output, records[0].counted_by) == (output, counted_by)


async def test_events_split_anywhere_and_roles_without_text() -> None:
    role = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    hello = event({"choices": [{"index": 0, "delta": {"content": "hé"}, "finish_reason": "stop"}]})
    stream = (b": keep-alive\n\n" + role + hello + usage(3, 1) + DONE).replace(b"\n", b"\r\n")

    async def answer(number: int, send: Send) -> None:
        for place in range(0, len(stream), 7):
            await send(stream[place : place + 7])
            await asyncio.sleep(0)

    records, _ = await play(answering(answer), talks(1))
    assert (records[0].outcome, records[0].output, len(records[0].arrivals)) == (OK, 1, 1)


# ---------------------------------------------------------------- what goes wrong


async def test_failures_by_kind() -> None:
    async def answer(number: int, send: Send) -> None:
        match number:
            case 0:
                await send(token())
                await send(event({"error": {"message": "out of luck"}}) + DONE)
            case 1:
                await send(token())  # and no more: the stream ends without a reason
            case 2:
                await send(b"data: {oops\n\n")
            case 3:
                await send(event({"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}) + DONE)
            case 4:
                await send(token())
                await asyncio.Event().wait()
            case _:
                await whole(send)

    records, _ = await play(answering(answer), talks(6, every=0.05), Limits(timeout_s=1.0))
    outcomes = [record.outcome for record in records]
    assert outcomes == ["stream error", "truncated", "protocol", "empty", "timeout", OK]
    assert "out of luck" in records[0].detail


async def test_refusals_keep_their_words() -> None:
    answers = iter([(429, {"error": "busy"}), (503, {"error": "loading"}), (400, {"error": "x" * 9999})])
    server = StubServer(refuse=lambda body: next(answers))
    records, _ = await play(server, talks(3, every=0.02))
    assert [record.outcome for record in records] == ["429", "http 503", "http 400"]
    assert "busy" in records[0].detail
    assert len(records[2].detail) == 500


async def test_nobody_there() -> None:
    records: list[Record] = []
    async with served(StubServer()) as url:
        pass  # the port is free again
    async with session(url, Target(url=url)) as http:
        client = Client(http, Endpoint(url, "stub", "completions", True, False), 5)
        player = Player(client, Prompts(VOCABULARY), Limits(), (0,), records.append, asyncio.Event())
        await player.play(talks(1))
    assert records[0].outcome == "connection"


# ---------------------------------------------------------------- how it ends


async def test_a_stop_cancels_what_is_open_and_keeps_what_was_measured() -> None:
    stop = asyncio.Event()

    async def answer(number: int, send: Send) -> None:
        if number == 0:
            return await whole(send)
        await send(token())
        if number == 3:
            stop.set()
        await asyncio.Event().wait()

    server = answering(answer)
    far = [*talks(4, every=0.02), Talk(3600.0, (Ask(4, "all", "", 8, 1),))]
    records, end = await play(server, far, stop=stop)
    assert [record.outcome for record in records] == [OK, ABORTED, ABORTED, ABORTED]
    assert (end.aborted, end.unsent) == (True, 1)
    assert server.cut_off == 3  # the server is told, and can free what they hold


async def test_unfinished_answers_are_not_awaited_for_ever() -> None:
    async def answer(number: int, send: Send) -> None:
        await send(token())
        await asyncio.Event().wait()

    records, end = await play(answering(answer), talks(2), Limits(drain_s=0.2))
    assert [record.outcome for record in records] == [UNFINISHED] * 2
    assert records[0].first is not None
    assert not end.aborted


async def test_a_defect_of_the_client_ends_the_run_and_is_raised() -> None:
    def broken(record: Record) -> None:
        raise RuntimeError("disk full")

    far = [*talks(2), Talk(3600.0, (Ask(2, "all", "", 8, 1),))]
    server = answering(lambda number, send: whole(send))
    async with served(server) as url, session(url, Target(url=url)) as http:
        client = Client(http, Endpoint(url, "stub", "completions", True, False), 5)
        player = Player(client, Prompts(VOCABULARY), Limits(), (0,), broken, asyncio.Event())
        with pytest.raises(RuntimeError, match="disk full"):
            await asyncio.wait_for(player.play(far), 30)


# ---------------------------------------------------------------- conversations


async def test_a_conversation_never_overlaps_itself_and_goes_on_from_the_answers() -> None:
    open_now = 0

    async def answer(number: int, send: Send) -> None:
        nonlocal open_now
        open_now += 1
        assert open_now == 1
        await send(token(" yes") + token(" indeed", finish="length") + usage(8, 2))
        open_now -= 1
        await send(DONE)

    server = answering(answer)
    asks = tuple(Ask(i, f"turn {i + 1}", "", 8, 2, pause) for i, pause in enumerate((0.0, 0.05, 0.1)))
    records, _ = await play(server, [Talk(0.0, asks)])
    assert [record.turn for record in records] == [0, 1, 2]
    for before, after, ask in zip(records, records[1:], asks[1:], strict=False):
        assert after.scheduled >= (before.end or 0) + ask.pause
    first, second, third = (body["prompt"] for body in server.seen)
    assert second.startswith(f"{first} yes indeed word")
    assert third.startswith(f"{second} yes indeed word")


async def test_a_conversation_ends_where_it_gets_no_answer() -> None:
    server = StubServer(refuse=lambda body: (429, {}))
    records, end = await play(server, [Talk(0.0, tuple(Ask(i, "turn", "", 8, 2) for i in range(3)))])
    assert [record.outcome for record in records] == ["429"]
    assert end.unsent == 2
