"""Tiny random models, one per supported family, and what transformers itself generates with them."""

from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

VOCAB = 199
_COMMON = dict(vocab_size=VOCAB, num_hidden_layers=4, num_attention_heads=4, max_position_embeddings=256)
_GATED = dict(hidden_size=32, intermediate_size=48, num_key_value_heads=2, **_COMMON)

CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**_GATED),
    "qwen2": Qwen2Config(tie_word_embeddings=True, **_GATED),
    "qwen2-some-layers-slide": Qwen2Config(
        use_sliding_window=True, sliding_window=9, max_window_layers=2, **_GATED
    ),
    "qwen3": Qwen3Config(head_dim=16, **_GATED),
    "mistral-sliding": MistralConfig(sliding_window=10, **_GATED),
    "opt": OPTConfig(hidden_size=32, word_embed_proj_dim=16, ffn_dim=48, **_COMMON),
    "opt-norm-after": OPTConfig(hidden_size=32, ffn_dim=48, do_layer_norm_before=False, **_COMMON),
}


def make_model(config: PreTrainedConfig) -> torch.nn.Module:
    """Weights large enough that what a token attends to decides what comes next."""
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for name, parameter in model.named_parameters():
        centre = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        parameter.data.normal_(centre, 0.2)
    model.generation_config.eos_token_id = None
    return model


def save_model(config: PreTrainedConfig, folder: Path, **options: object) -> torch.nn.Module:
    model = make_model(config)
    model.save_pretrained(folder, **options)
    return model


def make_prompt(length: int, seed: int) -> list[int]:
    return torch.randint(3, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def hf_generate(model: torch.nn.Module, prompt: list[int], tokens: int, **options: object) -> list[int]:
    ids = torch.tensor([prompt])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=tokens,
        pad_token_id=0,
        **options,
    )
    return output[0, len(prompt) :].tolist()


def assert_same_text(
    model: torch.nn.Module, prompt: list[int], expected: list[int], actual: list[int]
) -> None:
    """Token for token; where two tokens tie within rounding either may be chosen, and the rest is free."""
    assert len(expected) == len(actual)
    for place, (wanted, got) in enumerate(zip(expected, actual, strict=True)):
        if wanted != got:
            with torch.no_grad():
                logits = model(torch.tensor([prompt + expected[:place]])).logits[0, -1]
            log_probs = logits.log_softmax(-1)
            difference = abs(float(log_probs[wanted] - log_probs[got]))
            assert difference < 1e-4, f"token {place}: {got} instead of {wanted}, {difference:.2g} nats worse"
            return
