"""Server-sent events of OpenAI-compatible streams, whatever is optional in them."""

from typing import Any

import msgspec

DONE = b"[DONE]"


class PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


class Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class Choice(msgspec.Struct, gc=False):
    """text: of completions; delta: of chat"""

    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None

    @property
    def said(self) -> str:
        """Text of the answer itself."""
        return self.text or (self.delta.content if self.delta else None) or ""

    @property
    def tells(self) -> bool:
        """Whether it has anything that the model generated."""
        if self.said or self.token_ids:
            return True
        delta = self.delta
        return delta is not None and bool(delta.reasoning_content or delta.reasoning or delta.tool_calls)


class Event(msgspec.Struct, gc=False):
    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None


decode = msgspec.json.Decoder(Event).decode
"""Raises msgspec.DecodeError."""


class Lines:
    """Splits what arrives into the data of whole events; a part of one is kept until the rest arrives.

    A `data:` of several lines is one event by the standard, but nobody who sends JSON writes one.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, received: bytes) -> list[bytes]:
        lines = (self._rest + received).split(b"\n")
        self._rest = lines.pop()
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]
