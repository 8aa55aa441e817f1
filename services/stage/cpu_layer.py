"""A decoder layer of the Llama kind on a CPU, in 20 calls instead of 60.

transformers' own makes a call of PyTorch for every sum, product and slice of norms and rotary embedding,
which take 5 of the 66 ms of a step of 8 jobs (SmolLM2-135M, float32, one thread). Here two loops that numba
compiles do them.
"""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.mistral.modeling_mistral import MistralDecoderLayer
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from services.stage.attention import attend
from services.stage.attention_plan import AttentionPlan
from services.stage.packed_linear import PackedLinear
from services.stage.paged_decode import MAY_REORDER

_PROJECTIONS = ("q_proj", "k_proj", "v_proj")
_FITTING = (LlamaDecoderLayer, MistralDecoderLayer, Qwen2DecoderLayer, Qwen3DecoderLayer)


def fits(layer: nn.Module) -> bool:
    return type(layer) in _FITTING


class CPULayer(nn.Module):
    """Computes what `layer` would, in float32 on a CPU. Its parts keep their names in the checkpoint.

    merged: names of linear layers of which `merge` makes one, once they are read. oneDNN takes 26 ms for all
        others and those of SmolLM2-135M at 4 rows, 31 ms with each alone: keys and values are too narrow.
    """

    merged = tuple(f"self_attn.{name}" for name in _PROJECTIONS)

    def __init__(self, layer: Any) -> None:
        """layer: that `fits`, also on the meta device"""
        super().__init__()
        self.self_attn: Any = layer.self_attn
        self.mlp: Any = layer.mlp
        self.input_layernorm: Any = layer.input_layernorm
        self.post_attention_layernorm: Any = layer.post_attention_layernorm
        self._window = _window(layer)
        self._head_norms = hasattr(layer.self_attn, "q_norm")

    def merge(self) -> None:
        parts: list[nn.Linear] = [getattr(self.self_attn, name) for name in _PROJECTIONS]
        self._heads = parts[0].out_features // self.self_attn.head_dim
        bias = None if parts[0].bias is None else torch.cat([part.bias for part in parts])
        self._projection = PackedLinear(torch.cat([part.weight for part in parts]), bias)
        for name in _PROJECTIONS:
            delattr(self.self_attn, name)

    def forward(
        self, hidden: Tensor, *, position_embeddings: tuple[Tensor, Tensor], plan: AttentionPlan, **_: Any
    ) -> Tensor:
        """hidden: [1, rows, hidden] -> the same shape

        position_embeddings: cosine and sine, [1, rows, head_dim] each
        """
        rows, mlp = hidden[0], self.mlp
        rows = rows + self._attend(_norm(rows, self.input_layernorm), position_embeddings, plan)
        normed = _norm(rows, self.post_attention_layernorm)
        rows += mlp.down_proj(mlp.act_fn(mlp.gate_proj(normed)).mul_(mlp.up_proj(normed)))
        return rows.unsqueeze(0)

    def _attend(self, normed: Tensor, rotary: tuple[Tensor, Tensor], plan: AttentionPlan) -> Tensor:
        attention, kv, heads = self.self_attn, plan.kv, self._heads
        rows = len(normed)
        projected = self._projection(normed).view(rows, -1, attention.head_dim)
        query, key, value = projected.split([heads, kv.kv_heads, kv.kv_heads], dim=1)
        if self._head_norms:
            query.copy_(attention.q_norm(query))
            key.copy_(attention.k_norm(key))
        layer = attention.layer_idx - kv.first_layer
        cosine, sine = (part[0].numpy() for part in rotary)
        _rotate_and_write(projected.numpy(), cosine, sine, kv.slots.numpy(), plan.write[layer].numpy())
        query, key, value = (part.transpose(0, 1).unsqueeze(0) for part in (query, key, value))
        output = attend(plan, layer, self._window, query, key, value, attention.scaling)
        return attention.o_proj(output.reshape(rows, -1))


def _window(layer: Any) -> int | None:
    if isinstance(layer, MistralDecoderLayer):
        return getattr(layer.self_attn.config, "sliding_window", None)
    return getattr(layer.self_attn, "sliding_window", None)


def _norm(rows: Tensor, norm: Any) -> Tensor:
    """[rows, hidden] -> the same shape"""
    output = torch.empty_like(rows)
    _rms_norm(rows.numpy(), norm.weight.numpy(), np.float32(norm.variance_epsilon), output.numpy())
    return output


@numba.njit(nogil=True, fastmath=MAY_REORDER)
def _rms_norm(rows: Any, weight: Any, epsilon: Any, output: Any) -> None:
    """rows, output: [rows, hidden]; weight: [hidden]"""
    width = rows.shape[1]
    for row in range(rows.shape[0]):
        squares = np.float32(0)
        for i in range(width):
            squares += rows[row, i] * rows[row, i]
        scale = np.float32(1) / np.sqrt(squares / np.float32(width) + epsilon)
        for i in range(width):
            output[row, i] = weight[i] * (rows[row, i] * scale)


@numba.njit(nogil=True, fastmath=MAY_REORDER)
def _rotate_and_write(projected: Any, cosine: Any, sine: Any, slots: Any, write: Any) -> None:
    """Rotates queries and keys in place; writes keys and values into the paged cache.

    projected: [rows, heads + 2 * kv_heads, head_dim], queries, keys and values
    cosine, sine: [rows, head_dim]
    slots: [slots, kv_heads, head_dim]; write: [2, rows], the slots of the rows' keys and values
    """
    kv_heads, half = slots.shape[1], projected.shape[2] // 2
    first_value = projected.shape[1] - kv_heads
    for row in range(projected.shape[0]):
        for head in range(first_value):
            for i in range(half):
                low, high = projected[row, head, i], projected[row, head, half + i]
                projected[row, head, i] = low * cosine[row, i] - high * sine[row, i]
                projected[row, head, half + i] = high * cosine[row, half + i] + low * sine[row, half + i]
        for head in range(kv_heads):
            for i in range(2 * half):
                slots[write[0, row], head, i] = projected[row, first_value - kv_heads + head, i]
                slots[write[1, row], head, i] = projected[row, first_value + head, i]
