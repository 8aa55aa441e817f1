"""Token ids to text, one token at a time, without ever emitting half a character.

Every token stands for a fixed run of bytes, and a text is the concatenation of its tokens' bytes. So the
bytes are looked up in a table made once, and an incremental UTF-8 decoder keeps back the tail that is no
whole character yet: exact, and O(1) per token without decoding anything twice.
"""

import codecs
import json
import re
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer as Backend

from shared.errors import CheckpointError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_new_decoder = codecs.getincrementaldecoder("utf-8")


class TokenBytes:
    """The bytes of every token id; empty for special tokens and for ids that no token has.

    leading_spaces: how many spaces the tokenizer drops at the start of a text (SentencePiece marks the start
    of a word with a space, the first word too)

    A run of byte tokens (`<0xE4>`) that is not valid UTF-8 loses only its bad bytes here. The `tokenizers`
    library gives up the run's good characters too, which would mean to hold back whole runs.
    """

    def __init__(self, backend: Backend) -> None:
        """Raises CheckpointError for a decoder that is not a mapping of tokens to bytes."""
        steps = _decoder_steps(backend)
        self.leading_spaces = sum(_leading_spaces(step) for step in steps)
        special = {i for i, token in backend.get_added_tokens_decoder().items() if token.special}
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self._table = [b""] * (max(vocabulary.values(), default=-1) + 1)
        for text, token in vocabulary.items():
            if token not in special:
                self._table[token] = _bytes_of(text, steps)

    def __getitem__(self, token: int) -> bytes:
        return self._table[token] if token < len(self._table) else b""


class Detokenizer:
    """The text of one job.

    continues: the text goes on from a prompt (completions), so a leading space belongs to it; otherwise
    (chat) it starts an answer
    shown: special tokens that are text here, with their bytes
    """

    __slots__ = ("_bytes", "_decoder", "_shown", "_spaces")

    def __init__(
        self, token_bytes: TokenBytes, *, continues: bool, shown: Mapping[int, bytes] | None = None
    ) -> None:
        self._bytes = token_bytes
        self._shown = shown or {}
        self._decoder = _new_decoder("replace")
        self._spaces = 0 if continues else token_bytes.leading_spaces

    def feed(self, token: int) -> str:
        """The characters that this token completes; empty if there are none."""
        return self._trim(self._decoder.decode(self._shown.get(token) or self._bytes[token]))

    def flush(self) -> str:
        """At the end: a replacement character if the last tokens are half a character."""
        return self._trim(self._decoder.decode(b"", True))

    def _trim(self, text: str) -> str:
        while self._spaces and text:
            if text[0] != " ":
                self._spaces = 0
                break
            text = text[1:]
            self._spaces -= 1
        return text


def _decoder_steps(backend: Backend) -> list[dict[str, Any]]:
    if backend.decoder is None:
        raise CheckpointError("tokenizer.json: it has no decoder, so token ids cannot be turned into text")
    decoder = json.loads(backend.decoder.__getstate__())
    steps: list[dict[str, Any]] = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    for step in steps:
        literal = "String" in step.get("pattern", {"String": ""})
        heads_only = step.get("stop", 0) == 0 and step.get("content", " ") == " "
        match step["type"]:
            case "ByteLevel" | "ByteFallback" | "Fuse" | "Metaspace":
                continue
            case "Replace" if literal:
                continue
            case "Strip" if heads_only and any(earlier["type"] == "Fuse" for earlier in steps):
                continue
        raise CheckpointError(f"tokenizer.json: decoder step {step} is not supported")
    return steps


def _leading_spaces(step: dict[str, Any]) -> int:
    match step["type"]:
        case "Strip":
            return step["start"]
        case "Metaspace":
            return 0 if step.get("prepend_scheme") == "never" else 1
        case _:
            return 0


def _bytes_of(text: str, steps: list[dict[str, Any]]) -> bytes:
    for step in steps:
        match step["type"]:
            case "ByteLevel":
                # An added token may hold characters outside the byte alphabet: it is plain text then.
                values = [_BYTE_OF.get(character, -1) for character in text]
                return text.encode() if -1 in values else bytes(values)
            case "ByteFallback":
                match_ = _BYTE_TOKEN.fullmatch(text)
                if match_:
                    return bytes([int(match_[1], 16)])
            case "Replace":
                text = text.replace(step["pattern"]["String"], step["content"])
            case "Metaspace":
                text = text.replace(step["replacement"], " ")
    return text.encode()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's visible stand-in for every byte: itself where printable, else the next one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}


_BYTE_OF = _byte_alphabet()
