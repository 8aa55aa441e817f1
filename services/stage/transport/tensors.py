"""Activations as bytes and back."""

from typing import cast

import torch
from torch import Tensor

from shared.messages import TensorData


def describe(hidden: Tensor) -> TensorData:
    """Its dtype and shape, without content."""
    return TensorData(str(hidden.dtype).removeprefix("torch."), list(hidden.shape))


def content_of(hidden: Tensor) -> memoryview:
    """Its bytes, row by row, as a flat buffer; hidden: any strides, dtype and device."""
    raw = hidden.cpu().contiguous().view(torch.uint8).numpy()
    return cast(memoryview, raw.data).cast("B")


def empty(data: TensorData) -> Tensor:
    """A tensor on the CPU to be filled with what `data` describes."""
    return torch.empty(data.shape, dtype=_dtype(data))


def restore(data: TensorData, content: bytearray) -> Tensor:
    """The tensor on the CPU; it uses the memory of `content`, which must be its own."""
    return torch.frombuffer(content, dtype=_dtype(data)).view(data.shape)


def _dtype(data: TensorData) -> torch.dtype:
    return getattr(torch, data.dtype)
