from pathlib import Path

import pytest

from services.gateway.tokenizer import Tokenizer
from shared.errors import CheckpointError, InvalidRequest
from tests.gateway.fakes import BOS, EOS, byte_level_backend, write_model_folder

BACKEND = byte_level_backend()
BOS_ID, EOS_ID = BACKEND.token_to_id(BOS), BACKEND.token_to_id(EOS)


def test_a_plain_prompt_and_a_chat_have_one_bos_each(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("hello").count(BOS_ID) == 1
    chat = tokenizer.encode_chat([{"role": "user", "content": "hello"}])
    assert chat[0] == BOS_ID and chat.count(BOS_ID) == 1


def test_a_chat_ends_where_the_answer_starts(tokenizer: Tokenizer) -> None:
    text = tokenizer.render_chat(
        [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    )
    assert text == f"{BOS}system: be brief\nuser: hi\nassistant:"


def test_the_template_refuses_messages_by_name(tokenizer: Tokenizer) -> None:
    turns = [{"role": "user", "content": "hi"}, {"role": "system", "content": "late"}]
    with pytest.raises(InvalidRequest, match="system must come first") as caught:
        tokenizer.encode_chat(turns)
    assert caught.value.param == "messages"


def test_a_model_without_chat_template_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no chat template"):
        Tokenizer(write_model_folder(tmp_path, template=None)).encode_chat([{"role": "user", "content": "x"}])


def test_vocabulary_counts_the_models_padding_rows(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == BACKEND.get_vocab_size() + 7
    assert tokenizer.token_bytes[tokenizer.vocab_size - 1] == b""


def test_end_tokens_come_from_the_generation_config_and_the_tokenizer(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path, eos_token_id=9)
    assert Tokenizer(folder).eos_ids == {9, EOS_ID}
    (folder / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')
    assert Tokenizer(folder).eos_ids == {5, 6, EOS_ID}


def test_sizes_of_a_nested_text_model_are_found(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path, vocab_size=None, text_config={"vocab_size": 999})
    assert Tokenizer(folder).vocab_size == 999


@pytest.mark.parametrize("missing", ["tokenizer.json", "config.json"])
def test_a_folder_without_its_files_is_a_clear_error(tmp_path: Path, missing: str) -> None:
    folder = write_model_folder(tmp_path)
    (folder / missing).unlink()
    with pytest.raises(CheckpointError, match=missing):
        Tokenizer(folder)
