"""What a stage asks Ray for: accelerators, and where its ranks may run."""

from typing import Any

import msgspec

from shared.config import Config, Tree

_CPU = 0.001
"""Of a rank without a GPU: a bundle must hold something, and cores are shared by the operating system."""


def stage_options(config: Config) -> Tree:
    """Ray Serve options of one stage: an accelerator for each of its ranks, all on one host.

    Without the request Ray neither reserves a GPU nor sets CUDA_VISIBLE_DEVICES: every stage would take the
    first one.
    """
    ranks = config.parallel.tensor_parallel
    options: dict[str, Any] = {
        "ray_actor_options": {
            "num_cpus": 0,
            "num_gpus": 1 if config.model.device == "cuda" else 0,
            "runtime_env": {"env_vars": compute_environment(config)},
        }
    }
    if ranks > 1:
        # Every layer ends in an all-reduce: it must not leave the host.
        options["placement_group_bundles"] = [rank_bundle(config)] * ranks
        options["placement_group_strategy"] = "STRICT_PACK"
    return options


def rank_bundle(config: Config) -> dict[str, float]:
    """Ray resources of one rank."""
    return {"GPU": 1} if config.model.device == "cuda" else {"CPU": _CPU}


def compute_environment(config: Config) -> dict[str, str]:
    """Variables of processes that compute, of all ranks."""
    # Spinning OpenMP workers on shared cores made a step ten times slower.
    variables = {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": str(config.stage.threads)}
    if config.model.device == "cuda":
        # Else PyTorch rounds pinned memory up to a power of two: 64 GiB for a host tier of 35.
        variables["PYTORCH_ALLOC_CONF"] = "pinned_max_round_threshold_mb:64"
    else:
        # Weights on huge pages, if the kernel gives them to who asks (its default): a step took a tenth less.
        variables["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
    return variables


def on_accelerators(config: Config, gpus: float) -> Config:
    """`config`, on CUDA if `model.device` is auto and the cluster has a GPU for every rank of every stage."""
    parallel = config.parallel
    needed = parallel.replicas * parallel.pipeline_stages * parallel.tensor_parallel
    if config.model.device != "auto" or gpus < needed:
        return config
    return msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, device="cuda"))
