"""A tokenizer that fits the tiny models, and grammars so small that brute force can list their answers."""

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from services.gateway.structured.schemas import json_rule
from shared.messages import Grammar

from .models import VOCAB

END = 2
_WORDS = ['"', "re", "red", '"r', "green", 'n"', "een", "ish", ", ", "[1", "true", "]"]
WORDS = ["red", "green", "greenish", "reed", ""]
GRAMMAR = Grammar(f"start: {json_rule({'enum': WORDS}, strict=True)}", [END], "response_format")
ANSWERS = [json.dumps(word).encode() for word in WORDS]


def token_bytes() -> list[bytes]:
    """By id; empty for special tokens and the padding rows of the embedding."""
    ascii_ = [bytes([byte]) for byte in range(0x20, 0x7F)]
    longer = [word.encode() for word in _WORDS if len(word) > 1]
    table = [b"", b"", b"", *ascii_, *longer]
    return table + [b""] * (VOCAB - len(table))


def write_tokenizer(folder: Path) -> None:
    names = ["<unk>", "<begin>", "<end>"] + [
        text.decode().replace(" ", "Ġ") for text in token_bytes() if text
    ]
    backend = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(names[:3])
    backend.save(str(folder / "tokenizer.json"))


def allowed_by_brute_force(output: Sequence[int], answers: Sequence[bytes] = ANSWERS) -> list[int]:
    """Every token is tried, and every answer."""
    table = token_bytes()
    text = b"".join(table[token] for token in output)
    going_on = [
        token
        for token, more in enumerate(table)
        if more and any(answer.startswith(text + more) for answer in answers)
    ]
    return sorted([*going_on, END] if text in answers else going_on)
