"""Pipelines that come and go while the application runs.

Ray Serve restarts every deployment of an application when its arguments change. So a pipeline beyond
`parallel.replicas` is an application of its own, `<app>-p<index>`, without a route: gateways hear of it over
NATS.
"""

import asyncio
import re

from ray import serve

from deploy.app import assemble_pipeline
from shared.config import Config, Tree


class PipelineApplications:
    """config: of the application, with the address of its NATS server
    overrides: Ray Serve deployment options by deployment name

    What there is Ray Serve knows: nothing is kept here, so that any gateway replica can be asked.
    """

    def __init__(self, config: Config, overrides: dict[str, Tree]) -> None:
        self._config = config
        self._overrides = overrides
        self._name = re.compile(re.escape(config.app) + r"-p([0-9]+)")
        self._scaling = asyncio.Lock()

    async def scale(self, replicas: int) -> None:
        """See `Scaler.scale`."""
        async with self._scaling:
            await asyncio.to_thread(self._scale, replicas)

    def _scale(self, replicas: int) -> None:
        there = self._there()
        for pipeline in sorted(there):
            if pipeline >= replicas:
                serve.delete(self._application(pipeline), _blocking=False)
        wanted = range(self._config.parallel.replicas, replicas)
        missing = [
            serve.RunTarget(
                assemble_pipeline(self._config, self._overrides, pipeline),
                name=self._application(pipeline),
                route_prefix=None,
            )
            for pipeline in wanted
            if pipeline not in there
        ]
        if missing:
            serve.run_many(
                missing, wait_for_ingress_deployment_creation=False, wait_for_applications_running=False
            )

    def _there(self) -> set[int]:
        names = (self._name.fullmatch(name) for name in serve.status().applications)
        return {int(name[1]) for name in names if name is not None}

    def _application(self, pipeline: int) -> str:
        return f"{self._config.app}-p{pipeline}"
