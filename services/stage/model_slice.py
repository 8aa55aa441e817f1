"""The part of a transformers causal LM that one stage computes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from services.stage.attention import ATTENTION
from services.stage.attention_plan import AttentionPlan
from services.stage.collectives import Alone, Collectives
from services.stage.cpu_layer import CPULayer, fits
from services.stage.layer_split import LayerCosts, layer_ranges
from services.stage.parallel_layers import WHOLE, Shards, cut_model, gather_logits
from shared.errors import CheckpointError

SUPPORTED = ("llama", "mistral", "opt", "qwen2", "qwen3")
"""`model_type`s that are tested. Others may look alike and compute wrongly."""

_BATCH_DEPENDENT_ROPE = ("dynamic", "longrope")
_FIRST_ONLY = ("embed_tokens", "embed_positions", "project_in")
_LAST_ONLY = ("norm", "final_layer_norm", "project_out")


def load_config(folder: Path) -> PreTrainedConfig:
    """The transformers configuration of a model that Skipjoin can run.

    Raises CheckpointError.
    """
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{folder}/config.json is not usable: {error}") from error
    if config.model_type not in SUPPORTED:
        raise CheckpointError(
            f"{folder}: model type {config.model_type!r} is not supported, only {', '.join(SUPPORTED)}"
        )
    if getattr(config, "quantization_config", None) is not None:
        raise CheckpointError(f"{folder}: quantized weights are not supported, use the unquantized model")
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    if rope in _BATCH_DEPENDENT_ROPE:
        # These rescale by the longest sequence in the batch: a job's text would depend on its neighbours.
        raise CheckpointError(f"{folder}: rope type {rope!r} is not supported")
    return config


class ModelSlice:
    """Embedding (first stage), some decoder layers, final norm and head (last stage).

    Built on the meta device: `weights.load` fills it.

    model: the transformers model without the parts of other stages; the rest keeps its checkpoint names
    layers: indices of its layers in the whole model
    known: names of all tensors of the whole model
    tied: name of a tensor -> name of the one that holds its values
    shards: which parts of its tensors belong to this rank
    merged: linear layers that `complete` makes others of
    """

    def __init__(
        self,
        config: PreTrainedConfig,
        stages: int,
        stage: int,
        dtype: torch.dtype,
        layer_split: Sequence[int] | None = None,
        collectives: Collectives | None = None,
    ) -> None:
        """layer_split: layers of each stage; default: balanced
        collectives: with the other ranks of the stage; None if it is the only one

        Raises ConfigError if layers or heads cannot be shared out.
        """
        self.config = config
        self.collectives: Collectives = collectives or Alone()
        self.dtype = dtype
        self.is_first = stage == 0
        self.is_last = stage == stages - 1
        with torch.device("meta"):
            self.model: Any = AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation=ATTENTION
            )
        self.model.eval().requires_grad_(False)
        self.known = frozenset[str](self.model.state_dict())
        self.tied: dict[str, str] = dict(self.model.all_tied_weights_keys)
        self.decoder: Any = self.model.get_decoder()
        self.layers = layer_ranges(self._costs(), stages, layer_split)[stage]
        self._drop_other_stages()
        self.merged: frozenset[str] = frozenset()
        self.shards: Shards = WHOLE
        if self.collectives.ranks > 1:
            self.shards = cut_model(self.model, config, self.collectives)
        attention = self.decoder.layers[self.layers.start].self_attn
        self.head_dim: int = attention.head_dim
        self.kv_heads: int = attention.k_proj.out_features // attention.head_dim

    def _costs(self) -> LayerCosts:
        layers = self.decoder.layers
        return LayerCosts(len(layers), _count_weights(layers[0]), _count_weights(self.model.lm_head))

    def _drop_other_stages(self) -> None:
        for index in range(len(self.decoder.layers)):
            if index not in self.layers:
                self.decoder.layers[index] = nn.Identity()  # keeps the indices of the others
        dropped = (() if self.is_first else _FIRST_ONLY) + (() if self.is_last else _LAST_ONLY)
        for name in dropped:
            if hasattr(self.decoder, name):
                setattr(self.decoder, name, None)
        if not self.is_last:
            self.model.lm_head = None

    def use_cpu_layers(self) -> None:
        """Before its weights are read, which will be packed float32 on a CPU."""
        for name, module in list(self.model.named_modules()):
            if fits(module):
                self.model.set_submodule(name, CPULayer(module))
                self.merged |= {f"{name}.{part}" for part in CPULayer.merged}

    def complete(self, device: torch.device) -> None:
        """Once its weights are read: compute what no checkpoint holds."""
        for layer in self.decoder.layers:
            if isinstance(layer, CPULayer):
                layer.merge()
        if hasattr(self.decoder, "rotary_emb"):
            self.decoder.rotary_emb = type(self.decoder.rotary_emb)(self.config).to(device)

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """First stage. tokens, positions: [1, tokens] int64 -> [1, tokens, hidden]."""
        hidden = self.decoder.embed_tokens(tokens)
        if getattr(self.decoder, "project_in", None) is not None:
            hidden = self.decoder.project_in(hidden)
        if hasattr(self.decoder, "embed_positions"):
            hidden = hidden + self.decoder.embed_positions(None, position_ids=positions)
        return hidden

    def run_layers(self, hidden: Tensor, positions: Tensor, plan: AttentionPlan) -> Tensor:
        """[1, tokens, hidden] -> [1, tokens, hidden]; writes the tokens' K and V into the paged cache."""
        rotary = None
        if hasattr(self.decoder, "rotary_emb"):
            rotary = self.decoder.rotary_emb(hidden, position_ids=positions)
        for index in self.layers:
            hidden = self.decoder.layers[index](
                hidden, position_ids=positions, position_embeddings=rotary, attention_mask=None, plan=plan
            )
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Last stage. [rows, hidden] -> [rows, vocab] on rank 0; other ranks get theirs only."""
        for name in _LAST_ONLY:
            part = getattr(self.decoder, name, None)
            if part is not None:
                hidden = part(hidden)
        return gather_logits(self.model.lm_head(hidden), self.config.vocab_size, self.collectives)


def _count_weights(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
