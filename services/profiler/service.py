"""The profiler's shell: a client of the scheduler at start, a listener to every iteration afterwards.

no profile on disk    grid ─> fit ─> publish ─> keep on disk ──┐
a profile on disk     fit ─> publish ─> verification ── holds ─┼─> every iteration ─> refit ─> publish
                                             └─ does not: grid ┘
"""

import asyncio
from collections.abc import Iterable

from services.profiler import cache, grid, hardware
from services.profiler.accuracy import RecentErrors, disagreement
from services.profiler.cache import Profile, ProfileKey
from services.profiler.core import CostFitter, Measurement
from shared.bus import Subscription
from shared.config import Config
from shared.costmodel import CostModel
from shared.errors import BusTimeout, NoResponder, SkipjoinError
from shared.ids import JobId
from shared.messages import Accepted, Hello, Limits, Refused, StepTiming, Submit, TokenBatch
from shared.service import Service

SUBMIT_TIMEOUT_S = 10.0
GRID_TIMEOUT_S = 300.0


class ProfilingFailed(SkipjoinError):
    """The measurements at start could not be made."""


class ProfilerService(Service):
    def __init__(self, config: Config, pipeline: int = 0) -> None:
        super().__init__(config, "profiler", pipeline)
        self._fitter = CostFitter()
        self._errors = RecentErrors()
        self._model: CostModel | None = None
        self._warm = False
        self._since_fit = 0
        self._noted: list[Measurement] | None = None
        self._stages = {f"stage{index}": "" for index in range(config.parallel.pipeline_stages)}
        self._unheard = set(self._stages)
        self._limits: asyncio.Queue[Limits] = asyncio.Queue(1)
        self._error = self.registry.gauge(
            "skipjoin_cost_model_relative_error",
            "Error of the cost model on recent iterations, predicted before they were measured.",
            ["kind", "quantile"],
        )
        self._iteration = self.registry.histogram(
            "skipjoin_iteration_seconds", "Compute time of an iteration, all stages."
        )

    # ------------------------------------------------------------ life

    async def on_start(self) -> None:
        subjects = self.bus.subjects
        self._tokens = await self.bus.subscribe(subjects.tokens(self.bus.instance))
        timings = await self.bus.subscribe(subjects.step_timing, depth=65536)
        hellos = await self.bus.subscribe(subjects.hello_all, depth=4096)
        self.supervisor.start("timings", self._learn(timings))
        self.supervisor.start("hellos", self._serve(hellos))
        self.supervisor.start("profile", self._profile())

    def hello(self) -> Hello:
        return Hello(self.name, self.bus.instance, ready=self._model is not None)

    async def _serve(self, hellos: Subscription) -> None:
        """Have the costs measured once; give the model to every scheduler that has none yet."""
        async for delivery in hellos:
            match delivery.body:
                case Hello(service, _, _, detail) if service in self._stages:
                    self._stages[service] = detail
                    self._unheard.discard(service)
                case Hello("scheduler", _, ready, _, Limits() as limits):
                    if self._model is not None:
                        if not ready:
                            await self._publish()
                    elif not self._unheard and self._limits.empty():
                        self._limits.put_nowait(limits)
                case _:
                    pass

    async def _publish(self) -> None:
        if self._model is not None:
            await self.bus.publish(self.bus.subjects.cost_model, self._model)

    # ------------------------------------------------------------ measuring

    async def _profile(self) -> None:
        while True:
            limits = await self._limits.get()
            if self._model is not None:
                continue  # asked for again while it was measured
            folder = cache.folder(self.config)
            key = ProfileKey.of(self.config, hardware.describe(self._stages.values()))
            profile = None
            if self.config.profiler.cache:
                profile = await asyncio.to_thread(cache.load, folder, key)
            if profile is None or not await self._adopt(profile, limits):
                measurements = await self._run(
                    "measuring iterations", grid.batches(self.config.profiler, limits, self.bus.instance)
                )
                await self._start_from(measurements)
                if self.config.profiler.cache and measurements:
                    await asyncio.to_thread(cache.store, folder, Profile.of(key, measurements))
                    await self.report("the profile is kept for the next start")

    async def _adopt(self, profile: Profile, limits: Limits) -> bool:
        """Publish the kept profile's model at once; then see whether iterations still cost that much."""
        await self._start_from(profile.measurements())
        assert self._model is not None
        model = self._model
        checks = grid.verification(self.config.profiler, limits, self.bus.instance)
        try:
            measurements = await self._run("verifying the profile", checks)
        except (ProfilingFailed, TimeoutError) as error:
            self.log.warning("the kept profile could not be verified: %r", error)
            return True
        factor = disagreement(model, measurements)
        holds = factor <= self.config.profiler.cache_tolerance
        self.log.info("iterations differ from the kept profile by a factor of %.2f", factor)
        if not holds:
            self.log.warning("the profile of %s is out of date, measuring again", profile.measured)
        await self.report("the kept profile " + ("holds" if holds else "is out of date"))
        return holds

    async def _run(self, what: str, groups: Iterable[list[Submit]]) -> list[Measurement]:
        """Every iteration while these jobs ran one group after another, those of clients among them.

        Raises ProfilingFailed, or TimeoutError after GRID_TIMEOUT_S.
        """
        groups = list(groups)
        noted = self._noted = []
        try:
            async with asyncio.timeout(GRID_TIMEOUT_S):
                for number, group in enumerate(groups):
                    await self.report(what, number / len(groups))
                    for job in group:
                        await self._submit(job)
                    await self._finish({job.job_id for job in group})
        finally:
            self._noted = None
        await self.report(what, 1.0)
        return noted

    async def _submit(self, job: Submit) -> None:
        try:
            answer = await self.bus.request(self.bus.subjects.submit, job, timeout=SUBMIT_TIMEOUT_S)
        except (NoResponder, BusTimeout) as error:
            raise ProfilingFailed(f"the scheduler does not take jobs: {error}") from None
        match answer.body:
            case Accepted():
                pass
            case Refused() as refused:
                raise ProfilingFailed(f"the scheduler refused a measurement: {refused.reason}")
            case other:
                raise ProfilingFailed(f"the scheduler answered a job with {type(other).__name__}")

    async def _finish(self, pending: set[JobId]) -> None:
        while pending:
            delivery = await self._tokens.next()
            if isinstance(delivery.body, TokenBatch):
                for item in delivery.body.items:
                    if item.error is not None:
                        raise ProfilingFailed(f"a measured iteration failed: {item.error}")
                    if item.finish is not None:
                        pending.discard(item.job_id)

    # ------------------------------------------------------------ learning

    async def _learn(self, timings: Subscription) -> None:
        async for delivery in timings:
            match delivery.body:
                case StepTiming(_, load, seconds):
                    self._iteration.observe(sum(seconds))
                    if self._warm:
                        await self._note(Measurement(load, sum(seconds)))
                    self._warm = True  # the very first iteration pays for allocations
                case other:
                    self.log.error("unexpected %s from %s", type(other).__name__, delivery.source)

    async def _note(self, measurement: Measurement) -> None:
        if self._noted is not None:
            self._noted.append(measurement)
        if self._model is None:
            return
        self._errors.note(self._model, measurement)
        self._fitter.add(measurement)
        self._since_fit += 1
        if self._since_fit >= self.config.profiler.refit_every:
            self._fit()
            await self._publish()

    async def _start_from(self, measurements: list[Measurement]) -> None:
        self._fitter = CostFitter(measurements)
        self._fit()
        await self._publish()

    def _fit(self) -> None:
        self._since_fit = 0
        self._model = self._fitter.fit()
        self.log.info("cost model: %s", self._model)

    def update_metrics(self) -> None:
        for kind, quantile, error in self._errors.quantiles():
            self._error.labels(kind.value, str(quantile)).set(error)
