"""The other ranks of a stage as Ray actors, in the placement group of the stage's replica.

Ray Serve reserves one bundle per rank on one host before it starts the replica, which is rank 0, and gives
them back when it stops it. So a stage is there with all of its ranks or not at all.
"""

from typing import Any

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from deploy.placement import rank_bundle
from services.stage.rank_messages import RankSpec, decode_spec, encode_spec
from shared.config import Config
from shared.errors import RankLost


class RankActor:
    """A process for one rank."""

    def run(self, spec: bytes) -> None:
        """Never returns: the process ends with the rank."""
        from deploy.logs import log_to_stderr
        from services.stage import rank_worker

        log_to_stderr(decode_spec(spec).config.logging)
        rank_worker.run(spec)


class RayRanks:
    """Lives in the replica that is rank 0. Raises RankLost outside of a placement group."""

    def __init__(self, config: Config, environment: dict[str, str]) -> None:
        """environment: variables of the ranks' processes"""
        group = ray.util.get_current_placement_group()
        if group is None:
            raise RankLost("the replica has no placement group for its other ranks")
        self._group: PlacementGroup = group
        self._resources = rank_bundle(config)
        self._environment = environment
        self._actors: list[Any] = []
        self._running: dict[Any, int] = {}
        self.host: str = ray.util.get_node_ip_address()

    def start(self, spec: RankSpec) -> None:
        remote: Any = ray.remote(RankActor)
        actor = remote.options(
            num_cpus=self._resources.get("CPU", 0),
            num_gpus=self._resources.get("GPU", 0),
            runtime_env={"env_vars": self._environment},
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=spec.rank
            ),
        ).remote()
        self._actors.append(actor)  # Ray ends an actor that nobody refers to
        self._running[actor.run.remote(encode_spec(spec))] = spec.rank

    def check(self) -> None:
        ended, _ = ray.wait(list(self._running), timeout=0)
        for reference in ended:
            try:
                ray.get(reference)
                cause = "it ended"
            except Exception as error:
                cause = str(error).strip().splitlines()[0]
            raise RankLost(f"the process of rank {self._running[reference]} is gone: {cause}")

    def stop(self) -> None:
        for actor in self._actors:
            ray.kill(actor)
