"""A model by name, or the profile of a machine from a JSON file."""

from pathlib import Path

import msgspec

from loadgen.simulate.models import LAUNCH_S, MODELS, ModelProfile
from shared.costmodel import CostModel
from shared.errors import ConfigError

EMBEDDED_KV_BYTES = 2 * 30 * 3 * 64 * 4
"""One token of the embedded model: K and V, 30 layers, 3 KV heads of 64, float32."""

DEFAULT_TOKENS = 1024 * 16
"""Of each tier in the default configuration."""


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """CostModel by name, as `skipjoin profile --json` writes it, and the rest of a ModelProfile, by default
    that of the embedded model and the default configuration.

    units: for readers; the coefficients are in seconds
    bandwidth: of copies in RAM, bytes/s: an assumption; measure it where swaps matter
    """

    prefill_a: float
    prefill_b: float
    prefill_c: float
    decode_a: float
    decode_b: float
    decode_c: float
    samples: int = 1
    units: dict[str, str] = {}
    name: str = "profile"
    kv_bytes: int = EMBEDDED_KV_BYTES
    device_tokens: int = DEFAULT_TOKENS
    host_bytes: int = EMBEDDED_KV_BYTES * DEFAULT_TOKENS
    bandwidth: float = 5e9
    stages: int = 1
    launch_s: float = LAUNCH_S
    stage_prefill_s: float = 0.0

    def model(self) -> ModelProfile:
        cost = CostModel(*(getattr(self, name) for name in CostModel.__struct_fields__))
        return ModelProfile(
            self.name, cost, self.kv_bytes, self.device_tokens, self.host_bytes, self.bandwidth, self.stages,
            self.launch_s, self.stage_prefill_s,
        )  # fmt: skip


def read(path: Path) -> ModelProfile:
    """{"prefill_a": seconds, ..., "kv_bytes": ..., ...}

    Raises ConfigError if it cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Profile).model()
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path}: no profile ({error})") from None


def model(name: str) -> ModelProfile:
    """One of MODELS, or the profile in a file *.json.

    Raises ConfigError if it is neither.
    """
    if name in MODELS:
        return MODELS[name]
    if not name.endswith(".json"):
        raise ConfigError(f"model {name!r}: known are {', '.join(MODELS)}, or a profile in a .json file")
    return read(Path(name))
