"""The bus against a real NATS server."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import msgspec
import pytest
from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from shared.bus import Bus
from shared.config import Config, NatsConfig
from shared.errors import BusClosed, BusTimeout, NoResponder, PayloadTooLarge
from shared.ids import Epoch, JobId
from shared.messages import Abort, CollectMetrics, KVChanged, Metrics
from shared.metrics import Registry
from shared.nats_server import EmbeddedNats, with_embedded_address
from shared.subjects import Subjects


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsConfig]:
    config = with_embedded_address(Config(nats=NatsConfig(max_payload=64 * 1024))).nats
    server = EmbeddedNats(config)
    yield config
    server.stop()


@pytest.fixture
async def pair(nats: NatsConfig) -> AsyncIterator[tuple[Bus, Bus]]:
    buses = [await Bus.connect(nats, Subjects("test"), name, Registry()) for name in ("a", "b")]
    yield buses[0], buses[1]
    for bus in buses:
        await bus.close()


async def test_messages_arrive_in_order_with_source_epoch_and_trace(pair: tuple[Bus, Bus]) -> None:
    a, b = pair
    inbox = await b.subscribe("x.*")
    a.epoch = Epoch(7)
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await a.publish("x.one", KVChanged(1), trace=trace)
    await a.publish("x.two", KVChanged(2))
    first, second = await inbox.next(), await inbox.next()
    assert (first.body, first.source, first.epoch, first.trace) == (KVChanged(1), a.instance, 7, trace)
    assert (second.body, second.trace, second.lost) == (KVChanged(2), None, 0)


async def test_a_full_queue_drops_and_the_next_message_shows_the_gap(pair: tuple[Bus, Bus]) -> None:
    a, b = pair
    inbox = await b.subscribe("x", depth=2)
    answers = await b.subscribe("done")
    for number in range(5):
        await a.publish("x", KVChanged(number))
    await a.publish("done", KVChanged(0))
    await answers.next()  # same connections: all five have been handled
    assert [(await inbox.next()).body for _ in range(2)] == [KVChanged(0), KVChanged(1)]
    await a.publish("x", KVChanged(5))
    late = await inbox.next()
    assert (late.body, late.lost) == (KVChanged(5), 3)


async def test_joining_late_is_no_gap(pair: tuple[Bus, Bus]) -> None:
    a, b = pair
    for number in range(3):
        await a.publish("x", KVChanged(number))
    inbox = await b.subscribe("x")
    await a.publish("x", KVChanged(3))
    assert (await inbox.next()).lost == 0


async def test_request_and_reply(pair: tuple[Bus, Bus]) -> None:
    a, b = pair
    inbox = await b.subscribe("service")

    async def serve() -> None:
        async for delivery in inbox:
            await b.reply(delivery, Metrics([]))

    task = asyncio.create_task(serve())
    answer = await a.request("service", CollectMetrics(), timeout=5)
    assert answer.body == Metrics([]) and answer.source == b.instance
    task.cancel()


@pytest.mark.parametrize("fails", [False, True])
async def test_a_cancellation_in_the_moment_of_the_answer_is_not_lost(
    pair: tuple[Bus, Bus], monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """As Python 3.11's `wait_for`, which nats-py uses, loses it."""
    a, _ = pair
    answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(a._client, "request", lambda *_, **__: asyncio.wait_for(answer, 5))
    task = asyncio.create_task(a.request("service", CollectMetrics(), timeout=5))
    await asyncio.sleep(0)
    if fails:
        answer.set_exception(NoRespondersError())
    else:
        payload, _ = a._encode("service", Metrics([]), None)
        answer.set_result(Msg(a._client, data=payload))
    await asyncio.sleep(0)  # the answer is there, and whoever waits for it has not gone on
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_nobody_there_and_nobody_answering_are_told_apart(pair: tuple[Bus, Bus]) -> None:
    a, b = pair
    with pytest.raises(NoResponder, match=r"nowhere"):
        await a.request("nowhere", CollectMetrics(), timeout=5)
    await b.subscribe("silent")
    with pytest.raises(BusTimeout, match=r"silent within 0.05 s"):
        await a.request("silent", CollectMetrics(), timeout=0.05)


async def test_payload_with_headers_over_the_servers_limit_is_a_typed_error(pair: tuple[Bus, Bus]) -> None:
    a, b = pair
    inbox = await b.subscribe("x")
    limit = 64 * 1024
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for count in range(limit - 200, limit + 1):  # one byte a step over the edge
        try:
            await a.publish("x", Abort([JobId(1)] * count), trace=trace)
        except PayloadTooLarge as error:
            assert error.limit == limit < error.size < limit + 100
            break
    else:
        pytest.fail("never refused")
    await a.publish("x", KVChanged(9))
    while (delivery := await inbox.next()).body != KVChanged(9):
        assert delivery.lost == 0
    a.check()


async def test_garbage_is_counted_and_does_not_end_the_subscription(pair: tuple[Bus, Bus]) -> None:
    a, b = pair
    inbox = await b.subscribe("x")
    await a._client.publish("x", b"\xc1 not msgpack")
    await a._client.publish("x", msgspec.msgpack.encode(["src", 1, 0, ["no such message"]]))
    await a.publish("x", KVChanged(1))
    assert (await inbox.next()).body == KVChanged(1)


async def test_wrong_credentials_fail_at_once(nats: NatsConfig) -> None:
    wrong = msgspec.structs.replace(nats, token="wrong")
    with pytest.raises(BusClosed, match="refused the credentials"):
        await Bus.connect(wrong, Subjects("test"), "c", Registry())


async def test_a_connection_that_is_given_up_leaves_nothing_behind(unused_tcp_port: int) -> None:
    nobody = NatsConfig(url=f"nats://127.0.0.1:{unused_tcp_port}")
    before = asyncio.all_tasks()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await Bus.connect(nobody, Subjects("test"), "d", Registry())
    left = asyncio.all_tasks() - before
    assert not left, "something still tries to connect"
