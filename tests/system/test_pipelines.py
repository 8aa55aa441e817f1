"""Two pipelines behind one gateway, with all that belongs to them: one is lost or stopped, streams go on."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.application import Application, pipeline_services
from tests.system.reference import Reference, make_prompt
from tests.system.test_faults import assert_texts, stream_while
from tests.system.test_prefix_reuse import cached_tokens, complete

TWO = {"parallel": {"replicas": 2}}


async def all_serve(app: Application) -> None:
    hellos = await app.gateway.bus.subscribe(app.gateway.bus.subjects.schedulers)
    while any(state.failure for state in app.gateway._engine.pipelines):
        await hellos.next()
    await hellos.close()


async def stop_first(app: Application) -> None:
    """As Ray Serve does it: the scheduler takes leave while the others stop."""
    await asyncio.gather(app.scheduler.stop(), *(stage.stop() for stage in app.stages))


async def kill_scheduler(app: Application) -> None:
    """It says nothing more and hears nothing."""
    await app.scheduler.supervisor.stop()
    await app.scheduler.bus.close()


async def kill_stage(app: Application) -> None:
    for stage in app.stages:
        await stage.supervisor.stop()
        await stage.bus.close()


@pytest.mark.parametrize("break_it", [stop_first, kill_scheduler, kill_stage])
async def test_streams_of_a_lost_pipeline_go_on_in_the_other(
    reference: Reference, break_it: Callable[[Application], Awaitable[None]]
) -> None:
    app = Application(**TWO, scheduler={"step_timeout_s": 2.0})
    async with app, asyncio.timeout(240):
        await all_serve(app)

        texts = await stream_while(app, break_it)
        await asyncio.to_thread(assert_texts, reference, texts)
        metrics = await app.metrics()
        assert metrics['skipjoin_routed_jobs_total{to="0"}'] >= 1, "else nothing was lost"
        assert metrics["skipjoin_resubmitted_jobs_total"] >= 1
        # What was lost comes back under the same name: the context checks and stops it.
        first = pipeline_services(app.config, 0)
        for service in (app.scheduler, *app.stages):
            if not service.bus.closed:
                await service.stop()
        app.scheduler, app.stages = first[0], first[3:]  # type: ignore[assignment]
        await asyncio.gather(app.scheduler.start(), *(stage.start() for stage in app.stages))
        await all_serve(app)
        for _ in range(2):  # one each: what the first one's blocks held was of an older epoch
            await complete(app, [1, 2, 3])
        await app.settled()


async def test_turns_of_conversations_stay_where_they_are_and_new_ones_are_spread(
    reference: Reference,
) -> None:
    async with Application(**TWO) as app, asyncio.timeout(240):
        await all_serve(app)
        turns = [reference.tokenizer.encode(make_prompt(index)) for index in range(5, 9)]
        for turn in turns:
            answer = await complete(app, turn)
            assert cached_tokens(answer) == 0
            turn += reference.tokenizer.encode(answer["choices"][0]["text"])
        metrics = await app.settled()
        assert metrics['skipjoin_routed_jobs_total{to="0"}'] == 2
        assert metrics['skipjoin_routed_jobs_total{to="1"}'] == 2
        for turn in turns:
            follow_up = [*turn, *reference.tokenizer.encode(" And then?")]
            assert cached_tokens(await complete(app, follow_up)) >= len(turn) // 16 * 16 - 16
            await app.settled()
        assert (await app.metrics())['skipjoin_routed_jobs_total{to="0"}'] == 4
        assert cached_tokens(await complete(app, turns[0], cache_salt="somebody else")) == 0
