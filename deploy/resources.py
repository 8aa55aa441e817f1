"""What each deployment takes of a cluster, and whether that is what the configuration needs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shared.config import Config, Tree


@dataclass(frozen=True)
class Demand:
    """One deployment as Ray Serve would run it.

    least, most: replicas
    cpus, gpus: of one replica, with its placement group
    bundles: how many placement bundles a replica has, 0 without a group; strategy: of the group
    lost: environment variables that the application sets and the file's ray_actor_options leave out
    """

    name: str
    is_stage: bool
    least: int
    most: int
    cpus: float
    gpus: float
    bundles: int
    strategy: str
    lost: tuple[str, ...]

    @property
    def replicas(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least} to {self.most}"

    @property
    def placement(self) -> str:
        if not self.bundles:
            return ""
        return f"{self.bundles} bundles, " + ("one host" if self.strategy == "STRICT_PACK" else self.strategy)


def demand_of(deployment: Any, said: Tree) -> Demand:
    """deployment: a bound Ray Serve deployment; said: the actor options that the application gives it"""
    actor: Tree = deployment.ray_actor_options or {}
    replica = deployment._replica_config
    bundles: list[dict[str, float]] = replica.placement_group_bundles or []
    taken = bundles or [{"CPU": actor.get("num_cpus") or 0, "GPU": actor.get("num_gpus") or 0}]
    scaling = deployment._deployment_config.autoscaling_config
    return Demand(
        name=deployment.name,
        is_stage=deployment.init_args[0] == "stage",
        least=scaling.min_replicas if scaling else deployment.num_replicas,
        most=scaling.max_replicas if scaling else deployment.num_replicas,
        cpus=sum(bundle.get("CPU", 0) for bundle in taken),
        gpus=sum(bundle.get("GPU", 0) for bundle in taken),
        bundles=len(bundles),
        strategy=replica.placement_group_strategy or "PACK",
        lost=tuple(sorted(_variables(said).keys() - _variables(actor).keys())),
    )


def _variables(actor: Tree) -> dict[str, str]:
    return (actor.get("runtime_env") or {}).get("env_vars") or {}


def _check_environment(demand: Demand) -> list[str]:
    if not demand.lost:
        return []
    return [
        f"deployments.{demand.name}.ray_actor_options: takes the place of the application's, which set "
        f"{', '.join(demand.lost)}; repeat them under runtime_env.env_vars"
    ]


def check_service(demand: Demand) -> list[str]:
    errors = _check_environment(demand)
    if demand.most != 1 and demand.name != "gateway":
        errors.append(
            f"deployments.{demand.name}: {demand.replicas} replicas, it must be 1; only gateways can be more"
        )
    return errors


def check_stage(config: Config, demand: Demand) -> list[str]:
    errors: list[str] = []
    where, device = f"deployments.{demand.name}", config.model.device
    ranks = config.parallel.tensor_parallel
    if device == "cuda" and demand.gpus != ranks:
        errors.append(
            f"{where}: asks for {demand.gpus:g} GPUs, parallel.tensor_parallel is {ranks}; "
            "a stage needs one for each of its ranks"
        )
    if device == "cpu" and demand.gpus:
        errors.append(f"{where}: asks for {demand.gpus:g} GPUs, model.device is cpu; it must be 0")
    if device == "cuda" and ranks > 1 and demand.strategy != "STRICT_PACK":
        errors.append(
            f"{where}.placement_group_strategy: {demand.strategy}, it must be STRICT_PACK; "
            "the ranks of a stage exchange activations in every layer and belong on one host"
        )
    if device == "cuda" and ranks > 1 and demand.bundles not in (0, ranks):
        errors.append(
            f"{where}.placement_group_bundles: {demand.bundles}, parallel.tensor_parallel is {ranks}; "
            "one bundle for each rank"
        )
    return errors


def table(demands: Sequence[Demand]) -> list[str]:
    """One line per deployment, and the sum with all replicas that there may be."""
    rows = [("deployment", "replicas", "CPUs", "GPUs", "placement of a replica")]
    rows += [(d.name, d.replicas, f"{d.cpus:g}", f"{d.gpus:g}", d.placement) for d in demands]
    cpus, gpus = (sum(getattr(d, kind) * d.most for d in demands) for kind in ("cpus", "gpus"))
    rows.append(("together", str(sum(d.most for d in demands)), f"{cpus:g}", f"{gpus:g}", ""))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
