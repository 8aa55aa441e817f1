"""`/v1/pipelines`: which pipelines there are, and how many there should be."""

from typing import Protocol

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from services.gateway.engine import Engine
from services.gateway.openapi import ERRORS
from services.gateway.requests_api import admin_only
from shared.config import Config
from shared.errors import InvalidRequest


class Scaler(Protocol):
    async def scale(self, replicas: int) -> None:
        """Begin to start and to remove pipelines until there are so many. Returns before it is done."""
        ...


class PipelineEntry(BaseModel):
    pipeline: int = Field(description="its number, from 0")
    serving: bool = Field(description="whether it gets new requests")
    reason: str | None = Field(description="why it cannot serve")
    jobs: int = Field(description="its unfinished jobs, of all gateways")


class PipelineList(BaseModel):
    data: list[PipelineEntry] = Field(description="by number")


class ScaleRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    replicas: int = Field(
        ge=1, description="how many there should be, from parallel.replicas to parallel.max_replicas"
    )


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

    @app.get("/v1/pipelines", response_model=PipelineList, responses=ERRORS, tags=["pipelines"])
    async def pipelines(request: Request) -> PipelineList:
        """Which there are, and which of them serve."""
        admin_only(request, "the list of pipelines", exposed=exposed)
        return listed()

    @app.post(
        "/v1/pipelines", response_model=PipelineList, responses=ERRORS, status_code=202, tags=["pipelines"]
    )
    async def scale(request: Request, body: ScaleRequest) -> PipelineList:
        """Have so many pipelines. Those that are to go are drained: their jobs go on in others."""
        admin_only(request, "the number of pipelines", exposed=exposed)
        check_replicas(body.replicas, config)
        if scaler is None:
            raise InvalidRequest(
                "replicas: this gateway runs outside of Ray Serve and cannot start pipelines",
                param="replicas",
                code="unsupported",
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
