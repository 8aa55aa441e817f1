"""Whether a model can be cut as `parallel` says, by its config.json alone."""

from pathlib import Path

from services.stage import checkpoint
from services.stage.layer_split import LayerCosts, layer_ranges
from services.stage.shards import check_heads
from shared.config import EMBEDDED_MODEL, Config
from shared.errors import ConfigError, SkipjoinError

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_MIB = 1024**2


def check_model(config: Config) -> tuple[list[str], list[str]]:
    """Errors, and notes: what the KV cache takes, or that the model is not on this machine."""
    path = config.model.path
    folder = Path(path).expanduser()
    if path == EMBEDDED_MODEL or not (folder / "config.json").is_file():
        return [], [
            f"model.path: no config.json of {path} on this machine; not checked: that the model can be cut "
            "into these stages and ranks"
        ]
    try:
        described = checkpoint.read_config(folder)
        checkpoint.max_model_len(config.model, folder)
        errors = _cut_errors(config, described)
        return errors, [] if errors else [_kv_bytes(config, described)]
    except SkipjoinError as error:
        return [str(error)], []


def _cut_errors(config: Config, described: dict[str, object]) -> list[str]:
    errors: list[str] = []
    layers = LayerCosts(_number(described, "num_hidden_layers"), layer=1.0, head=0.0)
    try:
        layer_ranges(layers, config.parallel.pipeline_stages, config.parallel.layer_split)
    except ConfigError as error:
        errors.append(str(error))
    heads = _number(described, "num_attention_heads")
    try:
        check_heads(heads, _number(described, "num_key_value_heads", heads), config.parallel.tensor_parallel)
    except ConfigError as error:
        errors.append(str(error))
    return errors


def _kv_bytes(config: Config, described: dict[str, object]) -> str:
    heads = _number(described, "num_attention_heads")
    head_size = _number(described, "head_dim", _number(described, "hidden_size") // heads)
    kv_heads = _number(described, "num_key_value_heads", heads) // config.parallel.tensor_parallel
    layers = -(-_number(described, "num_hidden_layers") // config.parallel.pipeline_stages)
    kv = config.kv
    block = layers * 2 * kv.block_size * kv_heads * head_size * _BYTES[config.model.dtype]
    device, host = (blocks * block / _MIB for blocks in (kv.device_blocks, kv.host_blocks))
    return (
        f"kv: a block takes {block / 1024:.0f} KiB on each rank, so {device:.0f} MiB of the device and "
        f"{host:.0f} MiB of host memory for each"
    )


def _number(described: dict[str, object], key: str, default: int | None = None) -> int:
    """Raises SkipjoinError if it is no positive number and there is no default."""
    value = described.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or value < 1:
        raise SkipjoinError(f"config.json: {key} is {value!r}, expected a positive number")
    return value
