"""The profiler's shell: a client of the scheduler at start, a listener to every iteration afterwards."""

import asyncio

from services.profiler import grid
from services.profiler.core import CostFitter
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
    def __init__(self, config: Config) -> None:
        super().__init__(config, "profiler")
        self._fitter = CostFitter()
        self._model: CostModel | None = None
        self._warm = False
        self._since_fit = 0
        self._scheduler: asyncio.Queue[Hello] = asyncio.Queue(16)
        self._error = self.registry.gauge(
            "skipjoin_cost_model_relative_error",
            "Error of the cost model on recent iterations.",
            ["quantile"],
        )
        self._iteration = self.registry.histogram(
            "skipjoin_iteration_seconds", "Compute time of an iteration, all stages."
        )

    async def on_start(self) -> None:
        subjects = self.bus.subjects
        self._tokens = await self.bus.subscribe(subjects.tokens(self.bus.instance))
        timings = await self.bus.subscribe(subjects.step_timing, depth=65536)
        hellos = await self.bus.subscribe(subjects.hello("scheduler"))
        self.supervisor.start("timings", self._learn(timings))
        self.supervisor.start("profile", self._serve(hellos))

    def hello(self) -> Hello:
        return Hello(self.name, self.bus.instance, ready=self._model is not None)

    async def _serve(self, hellos: Subscription) -> None:
        """Measure once; give the model to every scheduler that has none yet."""
        async for delivery in hellos:
            match delivery.body:
                case Hello(ready=False, limits=Limits() as limits):
                    if self._model is None:
                        await self._measure(limits)
                    await self._publish()
                case _:
                    pass

    async def _measure(self, limits: Limits) -> None:
        groups = list(grid.batches(self.config.profiler, limits, self.bus.instance))
        async with asyncio.timeout(GRID_TIMEOUT_S):
            for number, group in enumerate(groups):
                await self.report("measuring iterations", number / len(groups))
                for job in group:
                    await self._submit(job)
                await self._finish({job.job_id for job in group})
        self._fit()
        await self.report("measuring iterations", 1.0)

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

    async def _learn(self, timings: Subscription) -> None:
        async for delivery in timings:
            match delivery.body:
                case StepTiming(_, load, seconds):
                    self._iteration.observe(sum(seconds))
                    if self._warm:
                        self._fitter.add(load, sum(seconds), keep=self._model is None)
                    self._warm = True  # the very first iteration pays for allocations
                    self._since_fit += 1
                    if self._model is not None and self._since_fit >= self.config.profiler.refit_every:
                        self._fit()
                        await self._publish()
                case other:
                    self.log.error("unexpected %s from %s", type(other).__name__, delivery.source)

    def _fit(self) -> None:
        self._since_fit = 0
        self._model = self._fitter.fit()
        self.log.info("cost model: %s", self._model)
        errors = self._fitter.errors(self._model)
        for quantile in (0.5, 0.95):
            if errors:
                self._error.labels(str(quantile)).set(errors[int(quantile * (len(errors) - 1))])

    async def _publish(self) -> None:
        if self._model is not None:
            await self.bus.publish(self.bus.subjects.cost_model, self._model)
