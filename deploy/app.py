"""The application builder: one Ray Serve deployment per service, from one configuration tree.

`serve run deploy/local.yaml` and `skipjoin serve` both end up in `build`.
"""

import logging
import os
from typing import Any

import msgspec
import ray
from fastapi import FastAPI
from ray import serve
from ray.serve import Application

from deploy.ingress import own_request_ids
from deploy.logs import log_to_stderr
from deploy.placement import compute_environment, on_accelerators, stage_options
from deploy.ranks import RayRanks
from shared.config import Config, Tree, parse
from shared.errors import ConfigError
from shared.nats_server import EmbeddedNats, with_embedded_address
from shared.service import Service
from shared.supervise import LoopDied

HEALTH = {"health_check_period_s": 5.0, "health_check_timeout_s": 15.0, "graceful_shutdown_timeout_s": 5.0}
"""A replica that is being replaced must be gone soon: its epoch fences it, but it still holds memory."""

LIGHT = {"num_cpus": 0}
"""Services share the machine's cores by the operating system's scheduling, not by Ray's bookkeeping."""


DIRECT = {**LIGHT, "runtime_env": {"env_vars": {"RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0"}}}
"""The gateway writes to its clients itself. Between two threads Serve has a queue without a bound, in which
the answer of a client that does not read would pile up.
"""


class NatsDeployment:
    """The embedded NATS server, alive as long as the application is."""

    async def __init__(self, tree: Tree) -> None:
        config = parse(tree)
        log_to_stderr(config.logging)
        # Started from the event loop's thread: the kernel ends the server with the *thread* that forked it.
        self._server = EmbeddedNats(config.nats)

    def check_health(self) -> None:
        self._server.check()

    async def __del__(self) -> None:
        self._server.stop()


class ServiceDeployment:
    """Any service without an HTTP surface."""

    async def __init__(self, kind: str, tree: Tree, pipeline: int, *arguments: Any) -> None:
        config = parse(tree)
        log_to_stderr(config.logging)
        self._service = _service(kind, config, pipeline, *arguments)
        await self._service.start()

    async def check_health(self) -> None:
        """What cannot recover ends at once: Ray Serve would replace it only after three failed checks."""
        try:
            self._service.check()
        except LoopDied:
            self._service.log.critical("this process ends, to be replaced", exc_info=True)
            logging.shutdown()
            os._exit(1)

    async def __del__(self) -> None:
        await self._service.stop()


class PipelineDeployment(ServiceDeployment):
    """The scheduler of a pipeline that is an application of its own. `others` are handles that only make the
    pipeline's other deployments part of it.
    """

    async def __init__(self, tree: Tree, pipeline: int, *others: Any) -> None:
        await super().__init__("scheduler", tree, pipeline)


@serve.ingress(None)
class GatewayDeployment:
    """HTTP enters here. `others` are handles that only make the other deployments part of the application:
    requests reach them over NATS.
    """

    async def __init__(self, tree: Tree, overrides: dict[str, Tree], *others: Any) -> None:
        from deploy.scaling import PipelineApplications
        from services.gateway.service import GatewayService

        config = parse(tree)
        log_to_stderr(config.logging)
        own_request_ids()
        self._service = GatewayService(config, PipelineApplications(config, overrides))
        await self._service.start()

    def __serve_build_asgi_app__(self) -> FastAPI:
        return self._service.api

    async def check_health(self) -> None:
        self._service.check()

    async def __del__(self) -> None:
        await self._service.stop()


def _service(kind: str, config: Config, pipeline: int, *arguments: Any) -> Service:
    """Imported on demand: only a stage needs torch."""
    match kind:
        case "scheduler":
            from services.scheduler.service import SchedulerService

            return SchedulerService(config, pipeline)
        case "kvcache":
            from services.kvcache.service import KVCacheService

            return KVCacheService(config, pipeline)
        case "profiler":
            from services.profiler.service import ProfilerService

            return ProfilerService(config, pipeline)
        case "stage":
            from services.stage.service import StageService

            several = config.parallel.tensor_parallel > 1
            ranks = RayRanks(config, compute_environment(config)) if several else None
            return StageService(config, *arguments, processes=ranks, pipeline=pipeline)
        case _:
            raise ValueError(f"no service of kind {kind!r}")


def build(args: Tree) -> Application:
    """The application for a plain configuration tree (the `args` of a Ray Serve config file).

    Raises ConfigError naming the bad key.
    """
    config = parse(args)
    if config.nats.url is not None:
        return assemble(config, {}, embedded_nats=False)
    return assemble(with_embedded_address(config), {}, embedded_nats=True)


def assemble(config: Config, overrides: dict[str, Tree], embedded_nats: bool) -> Application:
    """Bind every deployment into the gateway's graph: Serve only deploys what is reachable from the ingress.

    overrides: Ray Serve deployment options by deployment name, as under `deployments:` in a config file
    embedded_nats: also run the NATS server that `config.nats` describes
    Raises ConfigError for overrides of deployments that do not exist, or that Ray Serve does not take.
    """
    config = on_accelerators(config, _cluster_gpus())
    tree: Tree = msgspec.to_builtins(config)
    _refuse_unknown(config, overrides, embedded_nats)
    others: list[Any] = []
    for pipeline in range(config.parallel.replicas):
        scheduler = _deployment(ServiceDeployment, "scheduler", overrides, pipeline)
        others.append(scheduler.bind("scheduler", tree, pipeline))
        others += _beside_scheduler(config, overrides, pipeline)
    if embedded_nats:
        others.append(_deployment(NatsDeployment, "nats", overrides).bind(tree))
    gateway = _deployment(
        GatewayDeployment,
        "gateway",
        overrides,
        num_replicas=config.gateway.replicas,
        ray_actor_options=DIRECT,
        max_ongoing_requests=10_000,  # admission is the gateway's own, with a proper answer
        graceful_shutdown_timeout_s=config.gateway.drain_s + 5.0,
    )
    return gateway.bind(tree, overrides, *others)


def assemble_pipeline(config: Config, overrides: dict[str, Tree], pipeline: int) -> Application:
    """One more pipeline for gateways that run already, as an application of its own: it comes and goes
    without anything else being touched. `config` is theirs, with the address of their NATS server.
    """
    root = _deployment(PipelineDeployment, "scheduler", overrides, pipeline)
    return root.bind(msgspec.to_builtins(config), pipeline, *_beside_scheduler(config, overrides, pipeline))


def _beside_scheduler(config: Config, overrides: dict[str, Tree], pipeline: int) -> list[Any]:
    """The other deployments of one pipeline."""
    tree: Tree = msgspec.to_builtins(config)
    others = [
        _deployment(ServiceDeployment, name, overrides, pipeline).bind(name, tree, pipeline)
        for name in ("kvcache", "profiler")
    ]
    for index in range(config.parallel.pipeline_stages):
        stage = _deployment(ServiceDeployment, f"stage-{index}", overrides, pipeline, **stage_options(config))
        others.append(stage.bind("stage", tree, pipeline, index))
    return others


def _deployment(
    target: type, name: str, overrides: dict[str, Tree], pipeline: int = 0, **options: Any
) -> Any:
    """Those of the first pipeline have plain names, those of others `scheduler-p1`, `stage-0-p1`, ...;
    `overrides` of a plain name hold for all of them, unless there are some of the full name.
    """
    full = f"{name}-p{pipeline}" if pipeline else name
    override = overrides.get(full, overrides.get(name, {}))
    options = _overridden({"ray_actor_options": LIGHT, **HEALTH, **options}, override)
    wrap: Any = serve.deployment  # its overloads do not know classes with an ASGI app
    try:
        return wrap(target).options(name=full, **options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"deployments.{full}: {error}") from None


def _refuse_unknown(config: Config, overrides: dict[str, Tree], embedded_nats: bool) -> None:
    """Raises ConfigError for overrides of deployments that are not here and that no pipeline may add."""
    stages = [f"stage-{index}" for index in range(config.parallel.pipeline_stages)]
    each = ["scheduler", "kvcache", "profiler", *stages]
    names = ["gateway", *(["nats"] if embedded_nats else []), *each]
    pipelines = range(1, max(config.parallel.replicas, config.parallel.max_replicas))
    known = {*names, *(f"{name}-p{pipeline}" for name in each for pipeline in pipelines)}
    unknown = sorted(set(overrides) - known)
    if unknown:
        raise ConfigError(
            f"deployments: there is no {', '.join(unknown)} (this application has {', '.join(sorted(names))})"
        )


def _overridden(options: Tree, override: Tree) -> Tree:
    """As Ray Serve applies a config file to what the code says: whole values, not merged."""
    if override.get("autoscaling_config"):  # which refuses a number of replicas beside it
        options = {key: value for key, value in options.items() if key != "num_replicas"}
    return {**options, **override}


def _cluster_gpus() -> float:
    """Of the Ray cluster that this process belongs to; 0 outside of one."""
    return ray.cluster_resources().get("GPU", 0.0) if ray.is_initialized() else 0.0
