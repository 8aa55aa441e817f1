"""Layers of which each rank of a stage holds a part, and how a model is cut into them.

    attention, MLP    in: whole ─> columns of the first linear layers ─> rows of the last one ─> sum ─> whole
    embedding         rows of this rank's tokens, zero for the others ─> sum ─> whole
    head              logits of this rank's tokens ─> gathered on rank 0, which samples

Which linear layer is cut how is transformers' tensor-parallel plan of the model.
"""

import re
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedConfig

from services.stage.collectives import Collectives
from services.stage.shards import Cut, check_heads, share
from shared.errors import ConfigError

_OPT_PLAN = {
    "layers.*.self_attn.q_proj": "colwise",
    "layers.*.self_attn.k_proj": "colwise",
    "layers.*.self_attn.v_proj": "colwise",
    "layers.*.self_attn.out_proj": "rowwise",
    "layers.*.fc1": "colwise",
    "layers.*.fc2": "rowwise",
}
"""transformers has none for OPT."""

_LAYER = re.compile(r"\.\d+\.")
"""Its number, which a plan leaves open."""

_WHOLE = "replicated_with_grad_allreduce"
"""Norms inside of a head: every rank has them."""


class VocabEmbedding(nn.Embedding):
    """The rows of one part of the vocabulary; gives whole embeddings [..., hidden]."""

    def __init__(self, rows: range, hidden: int, dtype: torch.dtype, collectives: Collectives) -> None:
        super().__init__(len(rows), hidden, dtype=dtype)
        self._rows = rows
        self._collectives = collectives

    def forward(self, input: Tensor) -> Tensor:
        local = input - self._rows.start
        elsewhere = (local < 0) | (local >= len(self._rows))
        embedded = F.embedding(local.masked_fill(elsewhere, 0), self.weight)
        # All but one of the summands are zero, so the sum is exact in every precision.
        return self._collectives.sum(embedded.masked_fill_(elsewhere.unsqueeze(-1), 0))


class SummedLinear(nn.Module):
    """A linear layer of whose input features each rank has some; takes those, gives the whole output.

    product: its part without the bias, which is added once, after the sum
    """

    def __init__(self, product: nn.Module, bias: Tensor | None, collectives: Collectives) -> None:
        super().__init__()
        self._product = product
        self._bias = bias
        self._collectives = collectives

    def forward(self, x: Tensor) -> Tensor:
        whole = self._collectives.sum(self._product(x))
        return whole if self._bias is None else whole.add_(self._bias)


@dataclass(frozen=True, slots=True)
class Shards:
    """cuts: by name of a parameter
    summed: linear layers that must become a SummedLinear once they are read
    """

    cuts: dict[str, Cut]
    summed: frozenset[str]


WHOLE = Shards({}, frozenset())


def check_config(config: PreTrainedConfig, ranks: int) -> None:
    """Raises ConfigError if the heads of the model that `config` describes do not come out even."""
    heads: int = config.num_attention_heads
    check_heads(heads, getattr(config, "num_key_value_heads", None) or heads, ranks)


def cut_model(model: Any, config: PreTrainedConfig, collectives: Collectives) -> Shards:
    """Shrink a model on the meta device to one rank's part, parameter names unchanged.

    Raises ConfigError if its heads cannot be shared evenly, or its plan has something unknown.
    """
    rank, ranks = collectives.rank, collectives.ranks
    check_config(config, ranks)
    cuts: dict[str, Cut] = {}
    summed: set[str] = set()
    for name, style in _styles(model, config).items():
        module: Any = model.get_submodule(name)
        if style == "vocabulary":
            cut = Cut(0, module.num_embeddings, share(module.num_embeddings, ranks, rank))
            cuts[f"{name}.weight"] = cut
            with torch.device("meta"):
                shard = VocabEmbedding(cut.part, module.embedding_dim, module.weight.dtype, collectives)
        elif style == "colwise":
            cut = Cut(0, module.out_features, share(module.out_features, ranks, rank))
            cuts |= {f"{name}.weight": cut, f"{name}.bias": cut}
            shard = _linear(module.in_features, len(cut.part), module)
        else:
            cut = Cut(1, module.in_features, share(module.in_features, ranks, rank))
            cuts[f"{name}.weight"] = cut
            summed.add(name)
            shard = _linear(len(cut.part), module.out_features, module)
        model.set_submodule(name, shard)
    for layer in model.get_decoder().layers:
        if hasattr(getattr(layer, "self_attn", None), "num_heads"):
            layer.self_attn.num_heads //= ranks  # OPT reshapes by it; the others by the size of a head alone
    return Shards(cuts, frozenset(summed))


def gather_logits(logits: Tensor, vocab: int, collectives: Collectives) -> Tensor:
    """[rows, this rank's tokens] -> [rows, vocab] on rank 0; elsewhere what came in."""
    if collectives.ranks == 1:
        return logits
    widths = [len(share(vocab, collectives.ranks, rank)) for rank in range(collectives.ranks)]
    gathered = collectives.gather(F.pad(logits, (0, widths[0] - logits.shape[1])))
    if not gathered:
        return logits
    return torch.cat([part[:, :width] for part, width in zip(gathered, widths, strict=True)], dim=1)


def _styles(model: Any, config: PreTrainedConfig) -> dict[str, str]:
    """Module name -> how it is cut, for those that are."""
    plan = _OPT_PLAN if config.model_type == "opt" else config.base_model_tp_plan or {}
    decoder = model.get_decoder()
    prefix = next(name for name, module in model.named_modules() if module is decoder)
    styles: dict[str, str] = {}
    for name, _ in decoder.named_modules():
        style = plan.get(_LAYER.sub(".*.", name), _WHOLE)
        if style not in ("colwise", "rowwise", _WHOLE):
            raise ConfigError(
                f"parallel.tensor_parallel: the model's plan wants {style!r} for {name}, which is not "
                "supported, set it to 1"
            )
        if style != _WHOLE:
            styles[f"{prefix}.{name}"] = style
    if decoder.embed_tokens is not None:
        styles[f"{prefix}.embed_tokens"] = "vocabulary"
    if model.lm_head is not None:
        styles["lm_head"] = "colwise"
    return styles


def _linear(inputs: int, outputs: int, like: nn.Linear) -> nn.Linear:
    with torch.device("meta"):
        return nn.Linear(inputs, outputs, bias=like.bias is not None, dtype=like.weight.dtype)
