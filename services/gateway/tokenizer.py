"""The tokenizer of a model folder: text and chats to token ids, and what the ids mean.

Built on the `tokenizers` library and transformers' chat template renderer alone. `AutoTokenizer` reads the
same files but imports torch: two seconds and 250 MB more for every gateway replica, for nothing used here.
"""

import json
from pathlib import Path
from typing import Any

from jinja2 import Environment, TemplateError, meta
from tokenizers import Tokenizer as Backend
from transformers.utils.chat_template_utils import render_jinja_template

from services.gateway.detokenize import Detokenizer, TokenBytes
from services.gateway.logprobs import TokenNames
from shared.errors import CheckpointError, InvalidRequest

ChatMessage = dict[str, Any]
"""`role` and `content`, and in templates that read `tools` what a call and its result have beside them."""

_TEMPLATE_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


def turn(role: str, text: str) -> ChatMessage:
    """As chat templates know it."""
    return {"role": "system" if role == "developer" else role, "content": text}


class Tokenizer:
    """Safe to call from several threads at once: nothing changes after construction.

    vocab_size: valid token ids are 0 .. vocab_size - 1 (the model's embedding rows)
    eos_ids: tokens that end an answer
    token_bytes: for detokenising
    names: how tokens are written beside their log-probabilities
    folder: where it is from
    tool_template: the chat template for requests with tools, if the model has one that reads them
    """

    def __init__(self, folder: Path) -> None:
        """Read `folder`: tokenizer.json, config.json, and where present tokenizer_config.json,
        generation_config.json and chat_template.jinja.

        Raises CheckpointError if a file is missing or cannot be read.
        """
        try:
            self._backend = Backend.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the library raises bare Exception
            raise CheckpointError(f"{folder / 'tokenizer.json'}: no usable tokenizer ({error})") from None
        self._backend.no_truncation()
        self._backend.no_padding()
        settings = _read(folder / "tokenizer_config.json", required=False)
        config = _read(folder / "config.json", required=True)
        generation = _read(folder / "generation_config.json", required=False)

        self._special = {name: _text(settings[name]) for name in _TEMPLATE_TOKENS if settings.get(name)}
        self.folder = folder
        self._template = _chat_template(folder, settings, "default")
        template = _chat_template(folder, settings, "tool_use") or self._template
        self.tool_template = template if template and _reads_tools(template) else None
        sizes = (part.get("vocab_size") for part in (config, config.get("text_config") or {}))
        self.vocab_size: int = next(filter(None, sizes), self._backend.get_vocab_size())
        self.eos_ids = self._eos_ids(config, generation)
        self._added = self._backend.get_added_tokens_decoder()
        self.token_bytes = TokenBytes(self._backend)
        self.names = TokenNames(self._backend, self.token_bytes)

    def encode(self, text: str, *, special_tokens: bool = True) -> list[int]:
        """Token ids of a plain prompt, by default with the BOS token if the model wants one."""
        return self._backend.encode(text, add_special_tokens=special_tokens).ids

    def decode(self, ids: list[int]) -> str:
        """The text of a prompt, without special tokens."""
        detokenizer = Detokenizer(self.token_bytes, continues=False)
        return "".join([*(detokenizer.feed(token) for token in ids), detokenizer.flush()])

    def text_of(self, ids: list[int]) -> str:
        """The text of any ids with all special tokens; bytes that are no characters become U+FFFD."""
        return self._backend.decode(ids, skip_special_tokens=False)

    def special_id(self, text: str) -> int | None:
        """The special token that is written so."""
        return next((i for i, token in self._added.items() if token.special and token.content == text), None)

    def encode_chat(
        self, messages: list[ChatMessage], tools: list[dict[str, Any]] | None = None, field: str = "messages"
    ) -> list[int]:
        """Token ids of a conversation, up to where the assistant's answer starts.

        tools: for a template that reads them; field: what errors name
        Special tokens come from the template alone, so there is never a second BOS.
        Raises InvalidRequest if the model has no chat template or the template refuses the messages.
        """
        return self._backend.encode(self.render_chat(messages, tools, field), add_special_tokens=False).ids

    def render_chat(
        self, messages: list[ChatMessage], tools: list[dict[str, Any]] | None = None, field: str = "messages"
    ) -> str:
        """The text of a conversation; raises like `encode_chat`."""
        template = self.tool_template if tools else self._template
        if template is None:
            raise InvalidRequest(
                f"{field}: this model has no chat template; use /v1/completions with a prompt",
                param=field,
                code="no_chat_template",
            )
        variables: dict[str, Any] = dict(self._special)
        try:
            rendered, _ = render_jinja_template(
                [messages],
                tools=tools,  # pyright: ignore[reportArgumentType]  # its lists are invariant
                chat_template=template,
                add_generation_prompt=True,
                **variables,
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise InvalidRequest(
                f"{field}: the model's chat template refuses them: {error}", param=field
            ) from None
        return rendered[0]

    def _eos_ids(self, config: dict[str, Any], generation: dict[str, Any]) -> frozenset[int]:
        stated = generation.get("eos_token_id", config.get("eos_token_id"))
        ids = set(stated if isinstance(stated, list) else [] if stated is None else [stated])
        if "eos_token" in self._special:
            ids.add(self._backend.token_to_id(self._special["eos_token"]))
        return frozenset(ids - {None})


def _read(path: Path, *, required: bool) -> dict[str, Any]:
    if not required and not path.exists():
        return {}
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error})") from None


def _text(token: Any) -> str:
    """A special token is written as its text, or as an object that holds it."""
    return token["content"] if isinstance(token, dict) else token


def _chat_template(folder: Path, settings: dict[str, Any], name: str) -> str | None:
    """The one of that name; the only one is the default."""
    file = folder / "chat_template.jinja"
    if file.exists():
        return file.read_text() if name == "default" else None
    template = settings.get("chat_template")
    if isinstance(template, list):  # several named ones
        return {entry["name"]: entry["template"] for entry in template}.get(name)
    return template if name == "default" else None


def _reads_tools(template: str) -> bool:
    try:
        syntax = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(template)
    except TemplateError:  # said when it is used; or with tags of transformers' own
        return "tools" in template
    return "tools" in meta.find_undeclared_variables(syntax)
