"""Measured iterations on disk, one JSON file per model, hardware, parallelism, version and grid.

A profile is only a shortcut: what cannot be read or does not match is ignored with a warning, and measured.
"""

import hashlib
import logging
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from services.profiler.core import Measurement
from shared.config import EMBEDDED_MODEL, Config, ModelConfig
from shared.costmodel import BatchLoad

log = logging.getLogger("skipjoin.profiler")

FORMAT = 1
"""Raise it when the meaning of a field changes: older files are then measured anew."""

Count = Annotated[int, Meta(ge=0)]


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of what is in the file."""


class ProfileKey(Record, frozen=True):
    """Everything that an iteration's cost depends on, and the grid that was run.

    model: name and what it stands for: "embedded", the folder with a digest of its config.json, or an id
    device: as configured, "auto" included: what the stages then found is the hardware
    hardware: from `hardware.describe`; threads: CPU threads of one stage
    """

    model: str
    dtype: str
    device: str
    hardware: str
    threads: int
    pipeline_stages: int
    tensor_parallel: int
    skipjoin: str
    torch: str
    prefill_tokens: tuple[int, ...]
    decode_batches: tuple[int, ...]
    decode_tokens: int

    @classmethod
    def of(cls, config: Config, hardware: str) -> "ProfileKey":
        return cls(
            model=_model_identity(config.model),
            dtype=config.model.dtype,
            device=config.model.device,
            hardware=hardware,
            threads=config.stage.threads,
            pipeline_stages=config.parallel.pipeline_stages,
            tensor_parallel=config.parallel.tensor_parallel,
            skipjoin=version("skipjoin"),
            torch=version("torch"),
            prefill_tokens=config.profiler.prefill_tokens,
            decode_batches=config.profiler.decode_batches,
            decode_tokens=config.profiler.decode_tokens,
        )

    @property
    def file_name(self) -> str:
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", self.model.split(" ", 1)[0])
        return f"{name}-{hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:12]}.json"


class Sample(Record, frozen=True, omit_defaults=True):
    """A Measurement with names, for people who read the file."""

    seconds: Annotated[float, Meta(gt=0)]
    prefill_tokens: Count = 0
    prefill_squares: Count = 0
    decode_jobs: Count = 0
    decode_context: Count = 0


class Profile(Record, frozen=True):
    """measured: when, ISO 8601"""

    format: int
    key: ProfileKey
    measured: str
    samples: Annotated[list[Sample], Meta(min_length=1)]

    @classmethod
    def of(cls, key: ProfileKey, measurements: Iterable[Measurement]) -> "Profile":
        samples = [Sample(item.seconds, *msgspec.structs.astuple(item.load)) for item in measurements]
        return cls(FORMAT, key, datetime.now(UTC).isoformat(timespec="seconds"), samples)

    def measurements(self) -> list[Measurement]:
        return [
            Measurement(
                BatchLoad(
                    sample.prefill_tokens, sample.prefill_squares, sample.decode_jobs, sample.decode_context
                ),
                sample.seconds,
            )
            for sample in self.samples
        ]


def folder(config: Config) -> Path:
    if config.profiler.cache_dir is not None:
        return Path(config.profiler.cache_dir).expanduser()
    return config.model.cache_path / "profiles"


def load(directory: Path, key: ProfileKey) -> Profile | None:
    """The profile of exactly this key, or None."""
    path = directory / key.file_name
    profile = _read(path) if path.exists() else None
    if profile is not None and profile.key != key:
        log.warning("%s is the profile of something else and is ignored", path)
        return None
    return profile


def of_any_hardware(directory: Path, key: ProfileKey) -> list[Profile]:
    """Profiles that differ from `key` in nothing but the hardware, the newest first."""
    found = [profile for profile in _read_all(directory) if _same_but_hardware(profile.key, key)]
    return sorted(found, key=lambda profile: profile.measured, reverse=True)


def store(directory: Path, profile: Profile) -> None:
    """Write it so that a reader, or another writer, sees all of it or nothing."""
    path = directory / profile.key.file_name
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(profile), indent=2) + b"\n")
        temporary.replace(path)
    except OSError as error:
        log.warning("the profile cannot be kept in %s: %s", directory, error)
        with suppress(OSError):
            temporary.unlink()


def _read(path: Path) -> Profile | None:
    try:
        profile = msgspec.json.decode(path.read_bytes(), type=Profile)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        log.warning("%s is no profile and is ignored: %s", path, error)
        return None
    return profile if profile.format == FORMAT else None


def _read_all(directory: Path) -> Iterator[Profile]:
    for path in sorted(directory.glob("*.json")):
        profile = _read(path)
        if profile is not None:
            yield profile


def _same_but_hardware(one: ProfileKey, other: ProfileKey) -> bool:
    return msgspec.structs.replace(one, hardware=other.hardware) == other


def _model_identity(model: ModelConfig) -> str:
    if model.path == EMBEDDED_MODEL:
        return f"{model.served_name} ({EMBEDDED_MODEL})"
    path = Path(model.path).expanduser().resolve()
    if not path.exists():
        return f"{model.served_name} ({model.path})"  # on the hub, or nowhere: the stages will say so
    try:
        digest = hashlib.sha256((path / "config.json").read_bytes()).hexdigest()[:12]
    except OSError:
        digest = "no config.json"  # the stages will say so
    return f"{model.served_name} ({path}, {digest})"
