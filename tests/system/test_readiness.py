"""A worker that is gone shows: health is the process's own, readiness is the whole path's."""

import asyncio

import pytest

from services.stage.service import StageService
from tests.application import Application

pytestmark = pytest.mark.system


async def test_a_lost_stage_is_not_ready_until_it_is_back() -> None:
    async with Application() as app:
        hellos = await app.gateway.bus.subscribe(app.gateway.bus.subjects.hello_all)
        await app.stages[0].stop()
        async with asyncio.timeout(60):
            while (ready := await app.http.get("/ready")).status_code == 200:
                await hellos.next()
        await hellos.close()
        assert ready.status_code == 503 and "stage0" in ready.json()["reason"]
        assert (await app.http.get("/health")).status_code == 200
        refused = await app.http.post("/v1/completions", json=app.completion("a", 2))
        assert refused.status_code == 503 and refused.headers["retry-after"]
        app.stages[0] = StageService(app.config, 0)
        await app.stages[0].start()
        async with asyncio.timeout(60):
            await app.ready()
        assert (await app.http.post("/v1/completions", json=app.completion("a", 2))).status_code == 200
