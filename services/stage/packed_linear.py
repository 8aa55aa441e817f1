"""A linear layer whose weight oneDNN has laid out for its kernel once, instead of in every call.

Measured on SmolLM2-135M, float32, one thread, all linear layers of a decode step: 44 -> 36 ms at batch 1,
60 -> 28 ms at 4, 91 -> 54 ms at 16, and never slower up to 512 tokens. bfloat16 gains as well. One to three
rows take longer than four (39, 47 and 35 ms against 32), so they are filled up.
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_ROWS_HINT = 64
"""Batch size oneDNN optimises the layout for; 16 to 512 give the same layout, 1 a worse one for batches."""


_FEWEST_ROWS = 4
"""With fewer, oneDNN takes a kernel that reads the weights more slowly."""


class PackedLinear(nn.Module):
    """Replaces an nn.Linear on a CPU; takes and gives [..., rows, features] of the weight's dtype."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        # Not a parameter: the tensor is opaque to everything but oneDNN's operators.
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS_HINT)
        self._bias = bias

    def forward(self, x: Tensor) -> Tensor:
        rows = x.shape[-2]
        if rows >= _FEWEST_ROWS:
            return self._multiply(x)
        return self._multiply(F.pad(x, (0, 0, 0, _FEWEST_ROWS - rows)))[..., :rows, :]

    def _multiply(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")


@cache
def can_pack(device: str, dtype: torch.dtype) -> bool:
    """Whether this torch build and CPU pack weights of `dtype` (bfloat16 and float16 need instructions)."""
    if device != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    try:
        PackedLinear(torch.zeros(16, 16, dtype=dtype), None)(torch.zeros(1, 16, dtype=dtype))
    except RuntimeError:
        return False
    return True
