"""A compiled layer computes what transformers' own does, and leaves the same K and V in the paged cache."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from services.stage.attention import ATTENTION
from services.stage.attention_plan import AttentionPlan, PagedKV
from services.stage.batch import Span
from services.stage.cpu_layer import CPULayer, fits

from .models import CONFIGS

BLOCK = 4
BLOCKS = 32
LLAMA_KIND = [family for family in CONFIGS if not family.startswith("opt")]


def make_decoder(family: str) -> Any:
    torch.set_num_threads(1)
    torch.manual_seed(3)
    config = deepcopy(CONFIGS[family])  # the model sets its attention in there
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=ATTENTION)
    for parameter in model.requires_grad_(False).parameters():
        parameter.normal_(0.5, 0.3)
    return model.get_decoder()


def make_kv(decoder: Any, first_layer: int) -> PagedKV:
    config = decoder.config
    head_dim = decoder.layers[0].self_attn.head_dim
    shape = (BLOCKS, 4 - first_layer, 2, BLOCK, config.num_key_value_heads, head_dim)
    return PagedKV(torch.randn(shape, generator=torch.Generator().manual_seed(1)), first_layer)


def make_spans() -> list[Span]:
    """Decodes, a whole prompt, and the rest of one."""
    free = iter(np.random.default_rng(1).permutation(BLOCKS).astype(np.int32))
    spans: list[Span] = []
    for start, tokens in ((0, 1), (6, 1), (23, 1), (0, 14), (9, 7)):
        row = sum(span.tokens for span in spans)
        table = np.array([next(free) for _ in range(-(-(start + tokens) // BLOCK))], np.int32)
        spans.append(Span(row, tokens, start, table))
    return spans


@pytest.mark.parametrize("layer", [1, 3])
@pytest.mark.parametrize("family", LLAMA_KIND)
@torch.inference_mode()
def test_equals_the_layer_of_transformers(family: str, layer: int) -> None:
    decoder = make_decoder(family)
    original = decoder.layers[layer]
    assert fits(original)
    spans = make_spans()
    positions = torch.cat([torch.arange(span.start, span.context) for span in spans]).unsqueeze(0)
    hidden = torch.randn(1, positions.shape[1], decoder.config.hidden_size)
    before = hidden.clone()
    rotary = decoder.rotary_emb(hidden, position_ids=positions)
    expected_kv, kv = make_kv(decoder, first_layer=1), make_kv(decoder, first_layer=1)
    expected = original(
        hidden, position_ids=positions, position_embeddings=rotary, attention_mask=None,
        plan=AttentionPlan(spans, expected_kv),
    )  # fmt: skip
    layer_here = CPULayer(original)
    layer_here.merge()
    output = layer_here(hidden, position_embeddings=rotary, plan=AttentionPlan(spans, kv))
    torch.testing.assert_close(output, expected, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(kv.slots, expected_kv.slots, atol=1e-4, rtol=1e-5)
    assert torch.equal(hidden, before)  # it may belong to the transport


def test_opt_keeps_the_layer_of_transformers() -> None:
    assert not fits(make_decoder("opt").layers[0])
