"""The attention kernel that transformers' models call: K and V go into paged blocks, queries read them there.

Decode jobs are attended to together: on a CPU where K and V lie, elsewhere gathered. A prompt with nothing
cached needs no gather at all.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from services.stage import paged_decode
from services.stage.attention_plan import AttentionPlan, Decodes, PagedKV, Prefill
from services.stage.paged_decode import PagedDecodes

ATTENTION = "skipjoin_paged"
"""Name of the kernel in a model's configuration."""


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    plan: AttentionPlan,
    scaling: float,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Called by one layer for the whole batch, in the form of transformers' attention functions.

    query: [1, heads, rows, head_dim]; key, value: [1, kv_heads, rows, head_dim]
    attention_mask: always None, the plan has its own
    Returns [1, rows, heads, head_dim].
    """
    layer: int = module.layer_idx - plan.kv.first_layer  # pyright: ignore
    _write(plan.kv, plan.write[layer], key[0], value[0])
    return attend(plan, layer, sliding_window, query, key, value, scaling), None


def attend(
    plan: AttentionPlan,
    layer: int,
    window: int | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float,
) -> Tensor:
    """Attention of the whole batch in one layer, whose K and V are in the paged blocks already.

    Shapes are those of `paged_attention`. Returns [1, rows, heads, head_dim].
    """
    kv = plan.kv
    outputs: list[Tensor] = []
    for call in plan.calls(window):
        rows_query = query[:, :, call.rows]
        if isinstance(call, PagedDecodes):
            outputs.append(paged_decode.attend(call, kv.array, layer, rows_query[0].transpose(0, 1), scaling))
        elif isinstance(call, Decodes):
            outputs.append(_decode(call, kv, layer, rows_query, scaling))
        elif call.pages is None:
            outputs.append(_attend(call, rows_query, key[:, :, call.rows], value[:, :, call.rows], scaling))
        else:
            keys, values = _gather(kv, call.pages[layer], 1)
            context = call.mask.shape[-1] if call.mask is not None else keys.shape[2]
            outputs.append(_attend(call, rows_query, keys[:, :, :context], values[:, :, :context], scaling))
    return torch.cat(outputs).unsqueeze(0) if len(outputs) > 1 else outputs[0].unsqueeze(0)


def _write(kv: PagedKV, slots: Tensor, key: Tensor, value: Tensor) -> None:
    """slots: [2, rows]; key, value: [kv_heads, rows, head_dim]."""
    if kv.dtype is torch.float16:
        # An overflow of one job must not reach others: masked slots of a reused block still meet
        # the softmax, where only finite values vanish.
        key, value = torch.nan_to_num(key), torch.nan_to_num(value)
    kv.slots.index_copy_(0, slots[0], key.transpose(0, 1))
    kv.slots.index_copy_(0, slots[1], value.transpose(0, 1))


def _gather(kv: PagedKV, pages: Tensor, jobs: int) -> tuple[Tensor, Tensor]:
    """pages: [2 * jobs * blocks] -> keys and values, each [jobs, kv_heads, blocks * block_size, head_dim]."""
    gathered = kv.pages.index_select(0, pages).view(2, jobs, -1, kv.kv_heads, kv.head_dim).transpose(2, 3)
    return gathered[0], gathered[1]


def _decode(call: Decodes, kv: PagedKV, layer: int, query: Tensor, scaling: float) -> Tensor:
    """query: [1, heads, jobs, head_dim] -> [jobs, heads, head_dim]."""
    _, heads, jobs, head_dim = query.shape
    keys, values = _gather(kv, call.pages[layer], jobs)
    # The query heads that share a KV head stand in for query positions: K and V are read once for all.
    grouped = query[0].transpose(0, 1).view(jobs, kv.kv_heads, -1, head_dim)
    output = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=call.mask, scale=scaling)
    return output.reshape(jobs, heads, head_dim)


def _attend(call: Prefill, query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
    """query: [1, heads, tokens, head_dim]; keys, values: [1, kv_heads, keys, head_dim].

    Returns [tokens, heads, head_dim].
    """
    output = F.scaled_dot_product_attention(
        query,
        keys,
        values,
        attn_mask=call.mask,
        is_causal=call.mask is None,
        scale=scaling,
        enable_gqa=query.shape[1] != keys.shape[1],
    )
    return output[0].transpose(0, 1)


AttentionInterface.register(ATTENTION, paged_attention)
