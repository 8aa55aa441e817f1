"""A kept profile makes the start short, and one that no longer holds is measured again: with real stages."""

import asyncio
from pathlib import Path
from typing import Any

from services.profiler import cache, hardware
from services.profiler.cache import Profile, ProfileKey
from services.profiler.core import Kind
from shared.costmodel import CostModel
from tests.application import PROFILE, Application
from tests.profiler.measured import grid_loads, measured


class ProfiledApplication(Application):
    """Its profile has a folder of its own; what the profiler says is kept with the model that it then had."""

    def __init__(self, folder: Path, **profiler: Any) -> None:
        super().__init__(profiler={**PROFILE, "cache": True, "cache_dir": str(folder), **profiler})
        self.key = ProfileKey.of(self.config, hardware.describe([]))
        self._said: asyncio.Queue[tuple[str, CostModel | None]] = asyncio.Queue()
        report = self.profiler.report

        async def listen(text: str, fraction: float | None = None) -> None:
            await report(text, fraction)
            self._said.put_nowait((text, self.profiler._model))

        self.profiler.report = listen

    async def told(self, expected: str) -> CostModel | None:
        """The model at the time when the profiler says so."""
        async with asyncio.timeout(60):
            while True:
                text, model = await self._said.get()
                if text == expected:
                    return model


async def test_a_profile_that_no_longer_holds_is_measured_again_and_the_next_start_uses_that(
    tmp_path: Path,
) -> None:
    app = ProfiledApplication(tmp_path)
    stale = Profile.of(app.key, measured(grid_loads(), CostModel(100.0, 1.0, 0.0, 100.0, 0.0, 1.0)))
    cache.store(tmp_path, stale)
    async with app:
        kept = await app.told("verifying the profile")
        assert kept is not None and kept.samples == len(stale.samples) and kept.decode(1) > 50
        await app.told("the kept profile is out of date")
        model = await app.told("the profile is kept for the next start")
    assert model is not None and model.decode(1) < 10
    profile = cache.load(tmp_path, app.key)
    assert profile is not None and profile != stale

    # Any real machine agrees with what it has just measured within a factor of 20, whoever disturbs it.
    async with ProfiledApplication(tmp_path, cache_tolerance=20) as app:
        kept = await app.told("verifying the profile")
        assert kept is not None and kept.samples == len(profile.samples)
        await app.told("the kept profile holds")
        metrics = await app.metrics()
        for kind in (Kind.PREFILL, Kind.DECODE):
            for quantile in ("0.5", "0.95"):
                name = f'skipjoin_cost_model_relative_error{{kind="{kind}",quantile="{quantile}"}}'
                assert any(key.startswith(name[:-1]) for key in metrics), name
    assert cache.load(tmp_path, app.key) == profile
