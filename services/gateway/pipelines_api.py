"""`/v1/pipelines`: which pipelines there are, and how many there should be."""

from typing import Protocol

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from services.gateway.engine import Engine
from services.gateway.requests_api import admin_only
from shared.config import Config
from shared.errors import InvalidRequest


class Scaler(Protocol):
    async def scale(self, replicas: int) -> None:
        """Begin to start and to remove pipelines until there are so many. Returns before it is done."""
        ...


class PipelineEntry(BaseModel):
    """reason: why it cannot serve; jobs: unfinished ones, of all gateways"""

    pipeline: int
    serving: bool
    reason: str | None
    jobs: int


class PipelineList(BaseModel):
    data: list[PipelineEntry]


class ScaleRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    replicas: int = Field(ge=1)


def install(app: FastAPI, engine: Engine, config: Config, scaler: Scaler | None) -> None:
    exposed = config.gateway.exposed

    def listed() -> PipelineList:
        entries = [
            PipelineEntry(
                pipeline=state.pipeline,
                serving=not state.failure,
                reason=state.failure or None,
                jobs=state.jobs,
            )
            for state in engine.pipelines
        ]
        return PipelineList(data=entries)

    @app.get("/v1/pipelines", response_model=PipelineList)
    async def pipelines(request: Request) -> PipelineList:
        admin_only(request, "the list of pipelines", exposed=exposed)
        return listed()

    @app.post("/v1/pipelines", response_model=PipelineList, status_code=202)
    async def scale(request: Request, body: ScaleRequest) -> PipelineList:
        """Have so many pipelines. Those that are to go are drained: their jobs go on in others."""
        admin_only(request, "the number of pipelines", exposed=exposed)
        check_replicas(body.replicas, config)
        if scaler is None:
            raise InvalidRequest(
                "replicas: this gateway runs outside of Ray Serve and cannot start pipelines",
                param="replicas",
                code="unsupported",
                status=501,
            )
        await scaler.scale(body.replicas)
        return listed()


def check_replicas(replicas: int, config: Config) -> None:
    """Raises InvalidRequest."""
    parallel = config.parallel
    if replicas < parallel.replicas:
        raise InvalidRequest(
            f"replicas: {replicas} is less than the {parallel.replicas} of the configuration; change "
            "parallel.replicas and deploy again",
            param="replicas",
        )
    if replicas > parallel.max_replicas:
        raise InvalidRequest(
            f"replicas: {replicas} is more than the {parallel.max_replicas} of parallel.max_replicas",
            param="replicas",
        )
