"""Two pipelines on a scripted bus: one drains or dies, and its streams go on in the other, exactly."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import msgspec
import pytest

from services.gateway.bus_engine import BusEngine
from shared.block_hashes import block_hashes
from shared.clock import VirtualClock
from shared.config import parse
from shared.errors import BusTimeout, InvalidRequest, NotReady
from shared.ids import Epoch, JobId
from shared.messages import (
    HELLO_STALE_S,
    LEAVING,
    Abort,
    Accepted,
    Body,
    Explanation,
    FinishReason,
    Hello,
    JobTokens,
    Limits,
    Metrics,
    Outstanding,
    PrefixesKept,
    Refused,
    Sampling,
    Submit,
    TokenBatch,
)
from shared.metrics import Registry
from tests.gateway.fakes import FakeBus

CONFIG = parse({"parallel": {"replicas": 2}, "kv": {"block_size": 4}})
JOB = Submit(JobId(7), "gateway-1", [1, 2], 8, Sampling(), [2])
STOP = FinishReason.STOP


class Scripted:
    """A pipeline's scheduler, as far as the gateway sees it. Its epochs are its own: those of pipeline 1 are
    all older than those of pipeline 0.
    """

    def __init__(self, bus: FakeBus, pipeline: int) -> None:
        self.bus = bus
        self.pipeline = pipeline
        self.subjects = bus.subjects.pipeline(pipeline)
        self.by = (f"scheduler-{pipeline}", Epoch(1000 - 500 * pipeline))
        self.answer: Body | Exception | None = None
        self.outstanding: dict[str, Outstanding] = {}
        bus.responders[self.subjects.submit] = self._submitted

    def _submitted(self, body: Body) -> Body | Exception:
        assert isinstance(body, Submit)
        self.bus.scheduler = self.by
        return self.answer or Accepted(body.job_id)

    def replaced(self) -> None:
        name, epoch = self.by
        self.by = (f"{name}'", Epoch(epoch + 1))

    def hello(self, detail: str = "") -> None:
        hello = Hello(
            "scheduler", self.by[0], not detail, detail, Limits(64, 64), self.pipeline, None, self.outstanding
        )
        self.bus.send(self.bus.subjects.schedulers, hello, by=self.by)

    def tokens(self, start: int, tokens: list[int], finish: FinishReason | None = None) -> None:
        batch = TokenBatch([JobTokens(JOB.job_id, start, tokens, finish)], self.pipeline)
        self.bus.send(self.bus.subjects.tokens("gateway-1"), batch, by=self.by)

    @property
    def submits(self) -> list[Submit]:
        of_us = [body for subject, body in self.bus.requests if subject == self.subjects.submit]
        return [body for body in of_us if isinstance(body, Submit)]

    @property
    def aborts(self) -> list[Body]:
        return [body for subject, body in self.bus.published if subject == self.subjects.abort]


class Rig:
    def __init__(self) -> None:
        self.bus = FakeBus()
        self.clock = VirtualClock()
        self.engine = BusEngine(self.bus, Registry(), ["scheduler"], CONFIG, self.clock)  # type: ignore[arg-type]
        self.pipelines = [Scripted(self.bus, 0), Scripted(self.bus, 1)]

    async def settle(self) -> None:
        for _ in range(30):
            await asyncio.sleep(0)

    async def hellos(self, *details: str) -> None:
        for scripted, detail in zip(self.pipelines, details or ("", ""), strict=True):
            scripted.hello(detail)
        await self.settle()


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    await rig.engine.open()
    loops = [
        asyncio.ensure_future(loop)
        for loop in (
            rig.engine.receive_tokens(),
            rig.engine.watch_schedulers(),
            rig.engine.watch_prefixes(),
        )
    ]
    await rig.hellos()
    yield rig
    for loop in loops:
        assert not loop.done()
        loop.cancel()


async def begun(items: AsyncGenerator[JobTokens]) -> None:
    assert await anext(items) == JobTokens(JOB.job_id, 0, [])


async def rest(items: AsyncGenerator[JobTokens]) -> list[int]:
    return [token async for item in items for token in item.tokens]


@pytest.mark.parametrize("why", [LEAVING, "waiting for stage0", "silence"])
async def test_a_stream_goes_on_elsewhere_token_for_token(rig: Rig, why: str) -> None:
    first, second = rig.pipelines
    async with aclosing(rig.engine.generate(JOB, None)) as items:
        await begun(items)
        first.tokens(0, [10, 11])
        await rig.settle()
        if why == "silence":
            rig.clock.advance(HELLO_STALE_S + 1)
            second.hello()
        else:
            first.hello(why)
        await rig.settle()
        (again,) = second.submits
        assert (again.output, again.max_tokens) == ([10, 11], 8)
        assert first.aborts == [Abort([JOB.job_id])], "it may be alive"
        second.tokens(2, [12])
        first.tokens(2, [99, 98])  # it has not heard of it yet
        second.tokens(3, [2], STOP)
        await rig.settle()
        assert await rest(items) == [10, 11, 12, 2]
    await rig.settle()
    assert len(first.submits) == 1 and second.aborts == []
    assert set(map(str, first.aborts)) == {str(Abort([JOB.job_id]))}


async def test_a_pipeline_that_comes_back_and_goes_on_is_told_to_stop(rig: Rig) -> None:
    first, second = rig.pipelines
    async with aclosing(rig.engine.generate(JOB, None)) as items:
        await begun(items)
        await rig.hellos("no connection", "")
        assert len(second.submits) == 1
        rig.bus.published.clear()
        await rig.hellos()
        first.tokens(0, [10])
        await rig.settle()
        assert first.aborts == [Abort([JOB.job_id])]
        assert len(first.submits) == 1 and len(second.submits) == 1, "it stays where it is now"
        second.tokens(0, [2], STOP)
        await rig.settle()
        assert await rest(items) == [2]


async def test_without_another_pipeline_a_stream_waits_for_its_own(rig: Rig) -> None:
    first, second = rig.pipelines
    await rig.hellos("", "loading")
    async with aclosing(rig.engine.generate(JOB, None)) as items:
        await begun(items)
        first.tokens(0, [10])
        await rig.hellos("waiting for stage0", "loading")
        assert not rig.engine.ready[0] and "pipeline 1: loading" in rig.engine.ready[1]
        with pytest.raises(NotReady, match="waiting for stage0"):
            await anext(rig.engine.generate(JOB, None))
        first.tokens(1, [11])  # it kept its jobs
        await rig.hellos("", "loading")
        assert len(first.submits) == 1
        first.replaced()  # this one does not
        await rig.hellos("", "loading")
        assert first.submits[1].output == [10, 11]
        first.tokens(2, [2], STOP)
        await rig.settle()
        assert await rest(items) == [10, 11, 2]
    assert second.submits == []


async def test_ready_while_one_can_serve(rig: Rig) -> None:
    assert rig.engine.ready == (True, "")
    await rig.hellos("loading", "")
    assert rig.engine.ready == (True, "")
    assert [bool(state.failure) for state in rig.engine.pipelines] == [True, False]
    await rig.hellos("loading", LEAVING)
    assert not rig.engine.ready[0]


@pytest.mark.parametrize(
    "answer", [Refused(JOB.job_id, "draining", retryable=True), BusTimeout("no answer"), None]
)
async def test_a_new_request_that_one_pipeline_does_not_take_goes_to_the_next(
    rig: Rig, answer: Body | Exception | None
) -> None:
    first, second = rig.pipelines
    first.answer = answer
    if answer is None:
        del rig.bus.responders[first.subjects.submit]
    async with aclosing(rig.engine.generate(JOB, None)) as items:
        await begun(items)
        assert len(second.submits) == 1
        assert len(first.aborts) == isinstance(answer, BusTimeout), "perhaps it has it all the same"
        second.tokens(0, [2], STOP)
        await rig.settle()
        assert await rest(items) == [2]


async def test_what_no_pipeline_could_serve_is_refused_by_the_first(rig: Rig) -> None:
    first, second = rig.pipelines
    first.answer = Refused(JOB.job_id, "too long", "prompt")
    with pytest.raises(InvalidRequest, match="too long"):
        await anext(rig.engine.generate(JOB, None))
    assert second.submits == []


async def test_a_lost_message_concerns_the_jobs_of_its_pipeline_only(rig: Rig) -> None:
    first, second = rig.pipelines
    async with aclosing(rig.engine.generate(JOB, None)) as items:
        await begun(items)
        other = TokenBatch([JobTokens(JobId(8), 0, [5])], pipeline=1)
        rig.bus.send(rig.bus.subjects.tokens("gateway-1"), other, lost=1, by=second.by)
        await rig.settle()
        assert len(first.submits) == 1
        rig.bus.send(
            rig.bus.subjects.tokens("gateway-1"),
            msgspec.structs.replace(other, pipeline=0),
            lost=1,
            by=first.by,
        )
        await rig.settle()
        assert len(first.submits) == 2 and second.submits == []


async def test_the_second_turn_goes_where_the_first_one_was(rig: Rig) -> None:
    first, second = rig.pipelines
    prompt = list(range(20))
    kept = PrefixesKept(1, [block_hashes(prompt, 4, "tenant")])
    rig.bus.send(rig.bus.subjects.kept, kept, by=second.by)
    await rig.settle()
    turn = Submit(JobId(9), "gateway-1", [*prompt, 5, 6], 8, Sampling(), cache_salt="tenant")
    async with aclosing(rig.engine.generate(turn, None)) as items:
        await anext(items)
    assert len(second.submits) == 1
    second.by = (second.by[0], Epoch(second.by[1] + 1))  # its KV is lost
    await rig.hellos()
    async with aclosing(rig.engine.generate(turn, None)) as items:
        await anext(items)
    assert len(first.submits) == 1


async def test_what_other_gateways_have_sent_counts(rig: Rig) -> None:
    first, second = rig.pipelines
    own = Outstanding(1, 0, 10, 10_000)
    first.outstanding = {"gateway-2": Outstanding(3, 300, 300, 900), "gateway-1": own}
    second.outstanding = {"gateway-1": own}  # what is ours is known here
    await rig.hellos()
    async with aclosing(rig.engine.generate(JOB, None)) as items:
        await anext(items)
        assert len(second.submits) == 1 and first.submits == []


async def test_a_job_is_explained_by_the_pipeline_that_has_it(rig: Rig) -> None:
    answers = [Explanation(JobId(5), True, state="ended"), Explanation(JobId(5), True, state="running")]
    for scripted, answer in zip(rig.pipelines, answers, strict=True):
        rig.bus.responders[scripted.subjects.explain] = lambda _, answer=answer: answer
    assert await rig.engine.explain(JobId(5)) == answers[1]
    del rig.bus.responders[rig.pipelines[1].subjects.explain]
    assert await rig.engine.explain(JobId(5)) == answers[0]
    unknown = Explanation(JobId(5), False)
    rig.bus.responders[rig.pipelines[0].subjects.explain] = lambda _: unknown
    with pytest.raises(NotReady):  # who does not answer may have it
        await rig.engine.explain(JobId(5))
    await rig.engine.abort(JobId(5))
    assert [scripted.aborts for scripted in rig.pipelines] == [[Abort([JobId(5)])]] * 2


async def test_metrics_name_every_pipeline_but_the_first(rig: Rig) -> None:
    for scripted in rig.pipelines:
        rig.bus.responders[scripted.subjects.metrics("scheduler")] = lambda _: Metrics([])
    lines = (await rig.engine.metrics()).splitlines()
    assert 'skipjoin_up{service="scheduler"} 1.0' in lines
    assert 'skipjoin_up{pipeline="1",service="scheduler"} 1.0' in lines
