"""Reads a slice's tensors, and only those, from safetensors."""

import json
import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from services.stage.model_slice import ModelSlice
from services.stage.packed_linear import PackedLinear, can_pack
from shared.errors import CheckpointError

_REPORT_EVERY = 16
"""Modules between two progress reports: each becomes a message on the bus."""

_INDEX = "model.safetensors.index.json"
_NOT_WEIGHTS = re.compile(r"rotary_emb\.inv_freq$")
"""Buffers that old checkpoints saved although they follow from the configuration."""


def load(part: ModelSlice, folder: Path, device: torch.device, progress: Callable[[float], None]) -> None:
    """Fill `part` with weights on `device`; on a CPU its linear layers are packed for oneDNN.

    progress: called with the fraction done, 0..1. Raises CheckpointError.
    """
    with ExitStack() as stack:
        tensors = _Tensors(folder, part, device, stack)
        modules = [(name, module) for name, module in part.model.named_modules() if module._parameters]
        pack = can_pack(device.type, part.dtype)
        for done, (name, module) in enumerate(modules):
            _fill(name, module, tensors)
            if pack and type(module) is nn.Linear:
                # One by one, so that at most one layer's weights are held twice.
                part.model.set_submodule(name, PackedLinear(module.weight, module.bias))
            if done % _REPORT_EVERY == 0:
                progress(done / len(modules))
    progress(1.0)
    part.recreate_buffers(device)


def _fill(path: str, module: nn.Module, tensors: "_Tensors") -> None:
    for name, parameter in module._parameters.items():
        if parameter is not None:
            value = tensors.read(f"{path}.{name}", parameter.shape)
            module._parameters[name] = nn.Parameter(value, requires_grad=False)


class _Tensors:
    """A checkpoint's tensors by the names that transformers gives them."""

    def __init__(self, folder: Path, part: ModelSlice, device: torch.device, stack: ExitStack) -> None:
        self._folder = folder
        self._dtype = part.dtype
        self._device = device
        self._tied = part.tied
        self._prefix = f"{part.model.base_model_prefix}."
        self._stack = stack
        self._files: dict[Path, Any] = {}
        self._shared: dict[str, Tensor] = {}
        self._where = self._list()
        self._refuse_unknown(part.known)

    def read(self, name: str, shape: torch.Size) -> Tensor:
        """A tensor in the slice's dtype and device; tied names give the same one."""
        source = self._source(name)
        if source in self._shared:
            return self._shared[source]
        stored = self._open(self._where[source]).get_tensor(source)
        if stored.shape != shape:
            raise CheckpointError(
                f"{self._folder}: tensor {source} has shape {list(stored.shape)}, "
                f"config.json asks for {list(shape)}"
            )
        # Copied: `stored` is a view of the mapped file, which someone may replace while we serve.
        tensor = stored.to(self._device, self._dtype, copy=True)
        if name in self._tied or name in self._tied.values():
            self._shared[source] = tensor
        return tensor

    def _source(self, name: str) -> str:
        """The name under which the file holds `name`."""
        tied = self._tied.get(name)
        for candidate in (tied, name) if tied else (name,):
            # Checkpoints saved from the bare decoder lack the causal LM's prefix.
            for spelling in (candidate, candidate.removeprefix(self._prefix)):
                if spelling in self._where:
                    return spelling
        raise CheckpointError(
            f"{self._folder}: tensor {name} is missing; the files do not belong to this config.json "
            "or the download is incomplete"
        )

    def _list(self) -> dict[str, Path]:
        """Tensor name -> file, from the index or from the only file."""
        index = self._folder / _INDEX
        if index.is_file():
            try:
                names: dict[str, str] = json.loads(index.read_text())["weight_map"]
            except (OSError, ValueError, KeyError) as error:
                raise CheckpointError(f"{index} is not a safetensors index: {error!r}") from None
            return {name: self._folder / file for name, file in names.items()}
        files = sorted(self._folder.glob("*.safetensors"))
        if len(files) != 1:
            raise CheckpointError(
                f"{self._folder}: {len(files)} safetensors files without {_INDEX}; "
                "expected one file, or several with the index"
            )
        return dict.fromkeys(self._open(files[0]).keys(), files[0])

    def _open(self, path: Path) -> Any:
        if path not in self._files:
            try:
                self._files[path] = self._stack.enter_context(safe_open(path, framework="pt"))
            except (OSError, SafetensorError) as error:
                raise CheckpointError(f"{path} cannot be read: {error}") from error
        return self._files[path]

    def _refuse_unknown(self, known: frozenset[str]) -> None:
        unknown = [
            name
            for name in self._where
            if name not in known and self._prefix + name not in known and not _NOT_WEIGHTS.search(name)
        ]
        if unknown:
            # Leaving out a bias, say, would not fail but compute something else.
            raise CheckpointError(
                f"{self._folder}: {len(unknown)} tensors do not belong to the model that config.json "
                f"describes, such as {', '.join(sorted(unknown)[:3])}"
            )
