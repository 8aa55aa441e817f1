"""Reads a slice's tensors, and of those only the part of this rank, from safetensors."""

import ctypes
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from services.stage.model_slice import ModelSlice
from services.stage.packed_linear import PackedLinear, can_pack
from services.stage.parallel_layers import SummedLinear
from services.stage.shards import Cut
from shared.errors import CheckpointError

_REPORT_EVERY = 16
"""Modules between two progress reports: each becomes a message on the bus."""

_MAPPED_BYTES = 16 * 1024 * 1024
"""Of a file that are mapped at once; fewer cost more calls, more count as memory while they are copied."""

_INDEX = "model.safetensors.index.json"
_NOT_WEIGHTS = re.compile(r"rotary_emb\.inv_freq$")
"""Buffers that old checkpoints saved although they follow from the configuration."""


def load(part: ModelSlice, folder: Path, device: torch.device, progress: Callable[[float], None]) -> None:
    """Fill `part` with weights on `device`; on a CPU its linear layers are packed for oneDNN.

    progress: called with the fraction done, 0..1. Raises CheckpointError.
    """
    tensors = _Tensors(folder, part, device)
    # Names alone: the modules themselves would keep the weights that packing has replaced.
    names = [name for name, module in part.model.named_modules() if module._parameters]
    pack = can_pack(device.type, part.dtype)
    for done, name in enumerate(names):
        module = part.model.get_submodule(name)
        _fill(name, module, tensors)
        if type(module) is nn.Linear and name not in part.merged:
            # One by one, so that at most one layer's weights are held twice.
            part.model.set_submodule(name, _for_computing(part, name, module, pack))
            del module
            if pack:
                _give_back_memory()
        if done % _REPORT_EVERY == 0:
            progress(done / len(names))
    progress(1.0)
    part.complete(device)
    if pack:
        _give_back_memory()


def _fill(path: str, module: nn.Module, tensors: "_Tensors") -> None:
    for name, parameter in module._parameters.items():
        if parameter is not None:
            value = tensors.read(f"{path}.{name}", parameter.shape)
            module._parameters[name] = nn.Parameter(value, requires_grad=False)


def _for_computing(part: ModelSlice, name: str, linear: nn.Linear, pack: bool) -> nn.Module:
    if name not in part.shards.summed:
        return PackedLinear(linear.weight, linear.bias) if pack else linear
    bias = linear.bias
    linear.bias = None  # pyright: ignore[reportAttributeAccessIssue]
    product = PackedLinear(linear.weight, None) if pack else linear
    return SummedLinear(product, bias, part.collectives)


def _give_back_memory() -> None:
    """What was freed between the packed weights: else the C library keeps it, up to 0.6 times the slice."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's alone
    if trim is not None:
        trim(0)


class _Tensors:
    """A checkpoint's tensors by the names that transformers gives them, cut to the part of this rank."""

    def __init__(self, folder: Path, part: ModelSlice, device: torch.device) -> None:
        self._folder = folder
        self._dtype = part.dtype
        self._device = device
        self._tied = part.tied
        self._cuts = part.shards.cuts
        self._prefix = f"{part.model.base_model_prefix}."
        self._shared: dict[str, Tensor] = {}
        self._where = self._list()
        self._refuse_unknown(part.known)

    def read(self, name: str, shape: torch.Size) -> Tensor:
        """A tensor, or this rank's part of it, in the slice's dtype and device; tied names give the same one.

        shape: of the result
        """
        source = self._source(name)
        if source in self._shared:
            return self._shared[source]
        tensor = torch.empty(shape, dtype=self._dtype, device=self._device)
        cut = self._cuts.get(name)
        whole = list(shape)
        if cut is not None:
            whole[cut.dim] = cut.whole
        self._check_shape(source, whole)
        self._copy(source, tensor, whole, cut)
        if name in self._tied or name in self._tied.values():
            self._shared[source] = tensor
        return tensor

    def _copy(self, source: str, tensor: Tensor, whole: list[int], cut: Cut | None) -> None:
        """Into memory of our own: somebody may replace the file while we serve.

        Some rows at a time from a file opened anew, because pages of the mapping that were looked at, and
        their neighbours, count as our memory until it is closed.
        """
        first = cut.part.start if cut is not None and cut.dim == 0 else 0
        columns = slice(cut.part.start, cut.part.stop) if cut is not None and cut.dim == 1 else None
        row_bytes = max(1, math.prod(whole[1:]) * self._dtype.itemsize)
        step = max(1, _MAPPED_BYTES // row_bytes)
        for start in range(0, len(tensor), step):
            rows = slice(first + start, first + min(start + step, len(tensor)))
            with self._open(self._where[source]) as file:
                stored = file.get_slice(source)
                part = stored[rows] if columns is None else stored[rows, columns]
                tensor[start : start + step].copy_(part)
                del part, stored

    def _check_shape(self, source: str, wanted: list[int]) -> None:
        with self._open(self._where[source]) as file:
            stored: list[int] = file.get_slice(source).get_shape()
        if stored != wanted:
            raise CheckpointError(
                f"{self._folder}: tensor {source} has shape {stored}, config.json asks for {wanted}"
            )

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
        with self._open(files[0]) as file:
            return dict.fromkeys(file.keys(), files[0])

    def _open(self, path: Path) -> Any:
        try:
            return safe_open(path, framework="pt")
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error

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
