"""What the gateway asks services and other gateways: what became of a job, views, metrics, requests."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import TypeVar

from services.gateway.collect import Source, render
from services.gateway.pipeline_view import PipelineView
from services.gateway.pipelines import PipelineState
from shared.bus import Bus, Delivery
from shared.errors import BusError, NotReady
from shared.ids import JobId
from shared.messages import (
    AskRequests,
    AskTimelines,
    Body,
    CollectMetrics,
    Explain,
    Explanation,
    KVView,
    Look,
    MetricFamily,
    Metrics,
    Requests,
    SchedulerView,
    Timelines,
)
from shared.metrics import Registry

_Answer = TypeVar("_Answer", Timelines, Requests, Metrics)

_METRICS_TIMEOUT_S = 1.0
_EXPLAIN_TIMEOUT_S = 2.0
_LOOK_TIMEOUT_S = 1.0


class Inquiries:
    """services: those of a pipeline that are asked for metrics (`scheduler`, `stage0`, ...)"""

    def __init__(self, bus: Bus, registry: Registry, services: Sequence[str]) -> None:
        self._bus = bus
        self._registry = registry
        self._services = list(services)

    async def explain(self, job_id: JobId, pipelines: Iterable[int]) -> Explanation:
        """What the one of `pipelines` says that has the job, or had it.

        Raises NotReady if none says that it knows it and one does not answer.
        """
        answers = await asyncio.gather(
            *(self._explain(job_id, pipeline) for pipeline in pipelines), return_exceptions=True
        )
        known = [answer for answer in answers if isinstance(answer, Explanation)]
        found = [answer for answer in known if answer.found]
        if found:  # a job that went to another pipeline has ended where it was before
            return min(found, key=lambda answer: answer.state == "ended")
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return known[0]

    async def _explain(self, job_id: JobId, pipeline: int) -> Explanation:
        subject = self._bus.subjects.pipeline(pipeline).explain
        try:
            answer = await self._bus.request(subject, Explain(job_id), timeout=_EXPLAIN_TIMEOUT_S)
        except BusError as error:
            raise NotReady(f"the scheduler did not answer ({error})") from None
        if not isinstance(answer.body, Explanation):
            raise NotReady(f"the scheduler answered {type(answer.body).__name__}")
        return answer.body

    async def look(self, pipelines: Iterable[PipelineState]) -> list[PipelineView]:
        """What each of them looks like now."""
        return await asyncio.gather(*(self._look(each) for each in pipelines))

    async def timelines(
        self, pipelines: Iterable[int], job_ids: Sequence[JobId] | None = None, seconds: float = 0.0
    ) -> list[Timelines]:
        """What those of `pipelines` say that answer: see AskTimelines."""
        asked = AskTimelines(None if job_ids is None else list(job_ids), seconds)
        subjects = [self._bus.subjects.pipeline(pipeline).ask_timelines for pipeline in pipelines]
        return await self._ask_all(subjects, asked, Timelines, _EXPLAIN_TIMEOUT_S)

    async def requests(self, gateways: Iterable[str], name: str | None) -> list[Requests]:
        """What those of `gateways` say that answer: see AskRequests."""
        subjects = [self._bus.subjects.gateway_requests(gateway) for gateway in gateways]
        return await self._ask_all(subjects, AskRequests(name), Requests, _LOOK_TIMEOUT_S)

    async def _look(self, state: PipelineState) -> PipelineView:
        subjects = self._bus.subjects.pipeline(state.pipeline)
        scheduler, kv = await asyncio.gather(
            self._look_at(subjects.scheduler_look), self._look_at(subjects.kv_look)
        )
        view = PipelineView(state.pipeline, state.failure)
        if scheduler is not None and isinstance(scheduler.body, SchedulerView):
            view = view._replace(instance=scheduler.source, scheduler=scheduler.body)
        if kv is not None and isinstance(kv.body, KVView):
            view = view._replace(kv=kv.body)
        return view

    async def _look_at(self, subject: str) -> Delivery | None:
        try:
            return await self._bus.request(subject, Look(), timeout=_LOOK_TIMEOUT_S)
        except BusError:
            return None  # shown as away

    async def metrics(self, pipelines: Iterable[int], gateways: Iterable[str]) -> str:
        """The page of the whole application, the same whichever gateway is asked.

        gateways: the other ones
        """
        subjects = self._bus.subjects
        asked: dict[Source, str] = {
            Source(service, pipeline=pipeline): subjects.pipeline(pipeline).metrics(service)
            for pipeline in pipelines
            for service in self._services
        }
        asked |= {Source("gateway", gateway=name): subjects.gateway_metrics(name) for name in gateways}
        answers = await asyncio.gather(*map(self._collect, asked.values()))
        own = Source("gateway", gateway=self._bus.instance)
        return render({own: self._registry.export().families, **dict(zip(asked, answers, strict=True))})

    async def _collect(self, subject: str) -> list[MetricFamily] | None:
        """None is reported as skipjoin_up 0."""
        answer = await self._ask(subject, CollectMetrics(), Metrics, _METRICS_TIMEOUT_S)
        return answer.families if answer is not None else None

    async def _ask_all(
        self, subjects: Iterable[str], asked: Body, kind: type[_Answer], timeout: float
    ) -> list[_Answer]:
        """Of those that answer; who does not is being replaced or ends, and what it knew is lost with it."""
        answers = await asyncio.gather(*(self._ask(subject, asked, kind, timeout) for subject in subjects))
        return [answer for answer in answers if answer is not None]

    async def _ask(self, subject: str, asked: Body, kind: type[_Answer], timeout: float) -> _Answer | None:
        try:
            answer = await self._bus.request(subject, asked, timeout=timeout)
        except BusError:
            return None
        return answer.body if isinstance(answer.body, kind) else None
