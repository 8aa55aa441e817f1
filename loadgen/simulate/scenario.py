"""One run, described: which model under which policy, and how it is configured."""

import typing

import msgspec

from loadgen.simulate.models import ModelProfile
from loadgen.simulate.pipeline import Outcome, Pipeline
from loadgen.workload.requests import Request
from services.scheduler.policy import POLICIES
from shared.config import Config, KVConfig, SchedulerConfig, parse
from shared.errors import ConfigError


class Scenario(msgspec.Struct, frozen=True):
    """model: costs and memory; stages: None: as many as the model was published with
    policy, preset, swap_mode, batch, block_size: as in the configuration tree
    starvation_s: alpha in seconds; None: the preset's
    batch_tokens, chunked: tokens in one iteration, and whether prompts are computed in parts to keep to it
    overhead_s: seconds an iteration spends outside the stages
    """

    model: ModelProfile
    policy: str = "skip-join"
    preset: str = SchedulerConfig().preset
    swap_mode: str = KVConfig().swap_mode
    stages: int | None = None
    batch: int = 16
    block_size: int = 16
    starvation_s: float | None = None
    batch_tokens: int = SchedulerConfig().max_batch_tokens
    chunked: bool = False
    overhead_s: float = 0.0

    def config(self) -> Config:
        """Raises ConfigError for a policy or swap mode that this version has not."""
        require_policy(self.policy)
        device_blocks, host_blocks = self.model.blocks(self.block_size)
        stages = self.stages or self.model.stages
        return parse(
            {
                "scheduler": {
                    "policy": self.policy,
                    "preset": self.preset,
                    "max_batch_size": self.batch,
                    "max_batch_tokens": self.batch_tokens,
                    "chunked_prefill": self.chunked,
                    "starvation_s": self.starvation_s,
                    "batches_in_flight": stages,  # as published
                },
                "kv": {
                    "block_size": self.block_size,
                    "device_blocks": device_blocks,
                    "host_blocks": host_blocks,
                    "swap_mode": self.swap_mode,
                },
                "parallel": {"pipeline_stages": stages},
            }
        )

    def run(self, requests: list[Request]) -> Outcome:
        return Pipeline(self.config(), self.model, self.overhead_s).run(requests)


def require_policy(name: str) -> None:
    """Raises ConfigError if the scheduler has no such policy."""
    if name not in POLICIES:
        raise ConfigError(f"policy {name!r}: this version has {', '.join(POLICIES)}")


def swap_modes() -> tuple[str, ...]:
    """What the KV-cache manager can do when device blocks run short."""
    return typing.get_args(typing.get_type_hints(KVConfig)["swap_mode"])
