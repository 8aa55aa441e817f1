"""The engine on a scripted bus: submission, refusal, abort, a new scheduler, readiness, metrics."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from services.gateway.bus_engine import BusEngine
from shared.clock import VirtualClock
from shared.config import Config
from shared.errors import BusTimeout, GenerationFailed, InvalidRequest, NotReady, PayloadTooLarge
from shared.ids import Epoch, JobId
from shared.messages import (
    Abort,
    Accepted,
    Body,
    FinishReason,
    Hello,
    JobTokens,
    Limits,
    MetricFamily,
    Metrics,
    Refused,
    Sample,
    Sampling,
    Submit,
    TokenBatch,
)
from shared.metrics import Registry
from tests.gateway.fakes import FakeBus

LIMITS = Limits(64, 64)
JOB = Submit(JobId(7), "gateway-1", [1, 2], 8, Sampling(), [2])
NEW = ("scheduler-2", Epoch(20))


class Rig:
    def __init__(self) -> None:
        self.bus = FakeBus()
        self.clock = VirtualClock()
        self.registry = Registry()
        self.engine = BusEngine(self.bus, self.registry, ["scheduler", "stage0"], Config(), self.clock)  # type: ignore[arg-type]
        self.bus.responders[self.bus.subjects.pipeline(0).submit] = lambda body: Accepted(body.job_id)  # type: ignore[union-attr]

    def hello(self, *, ready: bool = True, by: tuple[str, Epoch] | None = None) -> None:
        source, _ = by or self.bus.scheduler
        hello = Hello("scheduler", source, ready, "" if ready else "loading", LIMITS if ready else None)
        self.bus.send(self.bus.subjects.schedulers, hello, by=by)

    def tokens(
        self,
        start: int,
        tokens: list[int],
        finish: FinishReason | None = None,
        *,
        lost: int = 0,
        job_id: int = 7,
        by: tuple[str, Epoch] | None = None,
    ) -> None:
        batch = TokenBatch([JobTokens(JobId(job_id), start, tokens, finish)])
        self.bus.send(self.bus.subjects.tokens("gateway-1"), batch, lost=lost, by=by)

    def tick(self) -> None:
        self.bus.subscriptions[self.bus.subjects.schedulers].queue.put_nowait(None)

    @property
    def submits(self) -> list[Body]:
        return [
            body for subject, body in self.bus.requests if subject == self.bus.subjects.pipeline(0).submit
        ]

    async def settle(self) -> None:
        """Let every task run until it waits again."""
        for _ in range(20):
            await asyncio.sleep(0)


@asynccontextmanager
async def connected() -> AsyncGenerator[Rig]:
    """An engine that has heard of its scheduler; its loops run on to the end."""
    rig = Rig()
    await rig.engine.open()
    loops = [
        asyncio.ensure_future(rig.engine.receive_tokens()),
        asyncio.ensure_future(rig.engine.watch_schedulers()),
    ]
    rig.hello()
    await rig.settle()
    yield rig
    for loop in loops:
        assert not loop.done()
        loop.cancel()


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with connected() as rig:
        yield rig


@asynccontextmanager
async def running(rig: Rig) -> AsyncIterator[AsyncGenerator[JobTokens]]:
    async with aclosing(rig.engine.generate(JOB, None)) as items:
        assert await anext(items) == JobTokens(JobId(7), 0, [])
        yield items


async def test_a_job_runs_to_its_end(rig: Rig) -> None:
    async with running(rig) as items:
        rig.tokens(0, [10])
        assert (await anext(items)).tokens == [10]
        rig.tokens(1, [11])
        rig.tokens(2, [2], FinishReason.STOP)
        await rig.settle()
        assert [(item.tokens, item.finish) async for item in items] == [([11, 2], FinishReason.STOP)]
    assert rig.submits == [JOB] and rig.bus.published == []


async def test_leaving_early_aborts_exactly_once(rig: Rig) -> None:
    async with running(rig) as items:
        rig.tokens(0, [10])
        await anext(items)
    await rig.settle()
    assert rig.bus.published == [(rig.bus.subjects.pipeline(0).abort, Abort([JobId(7)]))]


async def test_being_cancelled_aborts_exactly_once(rig: Rig) -> None:
    async def consume() -> None:
        async with running(rig) as items:
            await anext(items)

    task = asyncio.create_task(consume())
    await rig.settle()
    task.cancel()
    await asyncio.wait([task])
    await rig.settle()
    assert rig.bus.published == [(rig.bus.subjects.pipeline(0).abort, Abort([JobId(7)]))]


@pytest.mark.parametrize(
    ("answer", "error", "aborts"),
    [
        (Refused(JobId(7), "too long", "prompt"), InvalidRequest, 0),
        (Refused(JobId(7), "draining", retryable=True), NotReady, 0),
        (BusTimeout("no answer"), NotReady, 1),  # it may have been taken
        (PayloadTooLarge("x", 9, 8), InvalidRequest, 0),
    ],
)
async def test_a_job_that_is_not_taken(
    rig: Rig, answer: Body | Exception, error: type[Exception], aborts: int
) -> None:
    rig.bus.responders[rig.bus.subjects.pipeline(0).submit] = lambda _: answer
    with pytest.raises(error):
        async with running(rig):
            pass
    await rig.settle()
    assert len(rig.bus.published) == aborts


async def test_nobody_listening_is_not_ready(rig: Rig) -> None:
    del rig.bus.responders[rig.bus.subjects.pipeline(0).submit]
    with pytest.raises(NotReady, match="not reachable"):
        async with running(rig):
            pass


async def test_an_engine_failure_is_raised(rig: Rig) -> None:
    async with running(rig) as items:
        batch = TokenBatch([JobTokens(JobId(7), 0, [], FinishReason.ERROR, "stage 0 failed")])
        rig.bus.send(rig.bus.subjects.tokens("gateway-1"), batch)
        with pytest.raises(GenerationFailed, match="stage 0 failed"):
            await anext(items)
    await rig.settle()
    assert rig.bus.published == []


async def test_an_answer_that_its_grammar_stops_is_the_requests_fault(rig: Rig) -> None:
    async with running(rig) as items:
        batch = TokenBatch([JobTokens(JobId(7), 0, [], FinishReason.REFUSED, "too complex")])
        rig.bus.send(rig.bus.subjects.tokens("gateway-1"), batch)
        with pytest.raises(InvalidRequest, match="too complex") as refused:
            await anext(items)
    assert refused.value.code == "schema_too_complex"
    await rig.settle()
    assert rig.bus.published == []


async def test_a_new_scheduler_continues_the_stream_without_loss_or_doubling(rig: Rig) -> None:
    async with running(rig) as items:
        rig.tokens(0, [10, 11])
        assert (await anext(items)).tokens == [10, 11]
        rig.hello(ready=False, by=NEW)  # loading: nothing is sent to it yet
        await rig.settle()
        assert len(rig.submits) == 1
        rig.bus.scheduler = NEW
        rig.hello()
        await rig.settle()
        again = rig.submits[1]
        assert isinstance(again, Submit) and again.output == [10, 11]
        rig.tokens(2, [99], by=("scheduler-1", Epoch(10)))  # the old one is fenced off
        rig.tokens(2, [12])
        rig.tokens(3, [2], FinishReason.STOP)
        await rig.settle()
        assert [item.tokens async for item in items] == [[12, 2]]


async def test_a_resubmission_that_fails_is_tried_again_at_the_next_hello(rig: Rig) -> None:
    async with running(rig):
        accept = rig.bus.responders.pop(rig.bus.subjects.pipeline(0).submit)
        rig.bus.scheduler = NEW
        rig.hello()
        await rig.settle()
        rig.bus.responders[rig.bus.subjects.pipeline(0).submit] = accept
        rig.hello()
        await rig.settle()
        rig.hello()
        await rig.settle()
        assert len(rig.submits) == 3  # the first, the failed one, the one that worked


async def test_a_gap_is_asked_for_at_once(rig: Rig) -> None:
    async with running(rig) as items:
        rig.tokens(0, [10])
        rig.tokens(2, [12])
        await rig.settle()
        again = rig.submits[1]
        assert isinstance(again, Submit) and again.output == [10]
        rig.tokens(1, [11, 12])
        await rig.settle()
        assert (await anext(items)).tokens == [10, 11, 12]


async def test_a_lost_message_may_have_been_the_last_one_of_a_job(rig: Rig) -> None:
    async with running(rig):
        rig.tokens(0, [5], lost=1, job_id=8)
        await rig.settle()
        assert len(rig.submits) == 2


async def test_a_job_closed_during_its_resubmission_is_aborted_at_the_new_scheduler(rig: Rig) -> None:
    async with running(rig) as items:

        def close_first(body: Body) -> Body:
            assert isinstance(body, Submit)
            rig.engine._jobs.close(body.job_id)  # as the handler's end does
            return Accepted(body.job_id)

        rig.bus.responders[rig.bus.subjects.pipeline(0).submit] = close_first
        rig.bus.scheduler = NEW
        rig.hello()
        await rig.settle()
        del items
    assert rig.bus.published == [(rig.bus.subjects.pipeline(0).abort, Abort([JobId(7)]))]


async def test_readiness_follows_the_scheduler(rig: Rig) -> None:
    assert rig.engine.ready == (True, "") and rig.engine.limits == LIMITS
    rig.clock.advance(5.5)
    assert "no sign of life" in rig.engine.ready[1]
    rig.hello(ready=False)
    await rig.settle()
    assert rig.engine.ready == (False, "loading")
    with pytest.raises(NotReady, match="loading"):
        async with running(rig):
            pass
    assert rig.submits == []


async def test_streams_fail_when_no_scheduler_comes_back(rig: Rig) -> None:
    async with running(rig) as items:
        rig.clock.advance(61)
        rig.tick()
        with pytest.raises(GenerationFailed, match="did not come back"):
            await anext(items)


async def test_draining_refuses_the_new_and_waits_for_the_open(rig: Rig) -> None:
    async with running(rig) as items:
        drained = asyncio.create_task(rig.engine.drain(60))
        await rig.settle()
        assert not drained.done()
        with pytest.raises(NotReady, match="shutting down"):
            await anext(rig.engine.generate(JOB, None))
        rig.tokens(0, [2], FinishReason.STOP)
        await rig.settle()
        assert [item.tokens async for item in items] == [[2]]
    await drained
    assert rig.bus.published == []


async def test_draining_fails_what_does_not_end_in_time(rig: Rig) -> None:
    async def consume() -> None:
        async with running(rig) as items:
            with pytest.raises(GenerationFailed, match="shutting down"):
                await anext(items)

    task = asyncio.create_task(consume())
    await rig.settle()
    await rig.engine.drain(0)
    await task
    await rig.settle()
    assert rig.bus.published == [(rig.bus.subjects.pipeline(0).abort, Abort([JobId(7)]))]


async def test_metrics_of_all_services_are_one_page(rig: Rig) -> None:
    rig.registry.counter("skipjoin_things", "Things.", ["service"]).labels("gateway").inc(2)
    theirs = [
        MetricFamily(
            "skipjoin_things", "Things.", "counter", [Sample("skipjoin_things_total", {"service": "s"}, 3)]
        ),
        MetricFamily("skipjoin_jobs", "Jobs.", "gauge", [Sample("skipjoin_jobs", {}, 4)]),
    ]
    rig.bus.responders[rig.bus.subjects.pipeline(0).metrics("scheduler")] = lambda _: Metrics(theirs)
    others = rig.bus.subjects.gateway_metrics("gateway-2")
    own = MetricFamily(
        "skipjoin_things", "Things.", "counter", [Sample("skipjoin_things_total", {"service": "gateway"}, 5)]
    )
    rig.bus.responders[others] = lambda _: Metrics([own])
    for instance, now in (("gateway-1", 0.0), ("gateway-2", 0.0), ("gateway-3", 0.0), ("gateway-0", -9.0)):
        rig.engine._gateways.hear(Hello("gateway", instance, True), rig.clock.now() + now)
    lines = (await rig.engine.metrics()).splitlines()
    assert not any("gateway-0" in line for line in lines), "it has been silent for too long"
    for expected in (
        'skipjoin_things_total{gateway="gateway-1",service="gateway"} 2.0',
        'skipjoin_things_total{gateway="gateway-2",service="gateway"} 5.0',
        'skipjoin_up{gateway="gateway-1",service="gateway"} 1.0',
        'skipjoin_up{gateway="gateway-2",service="gateway"} 1.0',
        'skipjoin_up{gateway="gateway-3",service="gateway"} 0.0',
        'skipjoin_things_total{service="s"} 3.0',
        "skipjoin_jobs 4.0",
        'skipjoin_up{service="scheduler"} 1.0',
        'skipjoin_up{service="stage0"} 0.0',
    ):
        assert expected in lines
    assert lines.count("# TYPE skipjoin_things_total counter") == 1
