"""Joined deltas are the full text, and no delta ever holds half a character."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders

from services.gateway.detokenize import Detokenizer, TokenBytes
from shared.errors import CheckpointError
from tests.gateway.fakes import BOS, EOS, byte_fallback_backend, byte_level_backend

BYTE_LEVEL = byte_level_backend()
BYTE_FALLBACK = byte_fallback_backend()
BACKENDS = {"byte level": BYTE_LEVEL, "byte fallback": BYTE_FALLBACK}
TABLES = {name: TokenBytes(backend) for name, backend in BACKENDS.items()}
texts = st.text(st.characters(exclude_categories=["Cs"]))


def deltas(table: TokenBytes, tokens: list[int], *, continues: bool = False) -> list[str]:
    detokenizer = Detokenizer(table, continues=continues)
    return [*(detokenizer.feed(token) for token in tokens), detokenizer.flush()]


@given(st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() + 20)))
def test_any_tokens_join_to_the_full_decode(tokens: list[int]) -> None:
    assert "".join(deltas(TABLES["byte level"], tokens)) == BYTE_LEVEL.decode(tokens)


@pytest.mark.parametrize("name", BACKENDS)
@given(text=texts)
def test_any_text_comes_back(name: str, text: str) -> None:
    tokens = BACKENDS[name].encode(text, add_special_tokens=False).ids
    parts = deltas(TABLES[name], tokens)
    assert "".join(parts) == text
    assert all("\ufffd" not in part for part in parts) or "\ufffd" in text


@given(st.lists(st.integers(0, BYTE_FALLBACK.get_vocab_size() - 1)))
def test_byte_fallback_joins_to_the_full_decode_unless_bytes_are_bad(tokens: list[int]) -> None:
    full, ours = BYTE_FALLBACK.decode(tokens), "".join(deltas(TABLES["byte fallback"], tokens))
    assert ours == full or "\ufffd" in full


def test_an_emoji_over_four_tokens_is_one_delta() -> None:
    tokens = BYTE_FALLBACK.encode("a🦊b").ids
    assert deltas(TABLES["byte fallback"], tokens) == ["", "a", "", "", "", "🦊", "b", ""]


def test_a_text_cut_inside_a_character_ends_with_a_replacement_character() -> None:
    tokens = BYTE_FALLBACK.encode("a🦊").ids[:-1]
    assert deltas(TABLES["byte fallback"], tokens)[-1] == "\ufffd"


def test_special_tokens_are_skipped_and_added_plain_ones_are_text() -> None:
    ids = [BYTE_LEVEL.token_to_id(text) for text in (BOS, "<plain added>", EOS)]
    assert "".join(deltas(TABLES["byte level"], ids)) == "<plain added>"


def test_a_continuation_keeps_the_space_that_a_new_answer_drops() -> None:
    tokens = BYTE_FALLBACK.encode("hello").ids
    assert "".join(deltas(TABLES["byte fallback"], tokens)) == "hello"
    assert "".join(deltas(TABLES["byte fallback"], tokens, continues=True)) == " hello"


@pytest.mark.parametrize(
    "decoder", [None, decoders.WordPiece(), decoders.Strip(content=" ", left=0, right=1)]
)
def test_a_decoder_that_is_no_table_is_a_start_up_error(decoder: decoders.Decoder | None) -> None:
    backend = Backend.from_str(BYTE_LEVEL.to_str())
    backend.decoder = decoder
    with pytest.raises(CheckpointError, match="decoder"):
        TokenBytes(backend)
