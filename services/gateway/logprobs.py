"""Log-probabilities as clients see them: which belong to the text sent so far, and OpenAI's two styles."""

from collections import deque
from typing import NamedTuple

from pydantic import BaseModel, Field
from tokenizers import Tokenizer as Backend

from services.gateway.detokenize import TokenBytes
from shared.messages import TokenLogprobs

_LEAST = -9999.0
"""In place of minus infinity, which JSON does not have (vLLM's choice)."""


class TopLogprob(BaseModel):
    token: str = Field(description="its text, or bytes as \\xe2\\x80 if they are no whole characters")
    logprob: float = Field(description="the model's own, before temperature and penalties; at least -9999")
    bytes: list[int] | None = Field(description="of its text, UTF-8; null for a token that has none")


class ScoredToken(TopLogprob):
    top_logprobs: list[TopLogprob] = Field(description="the likeliest tokens here, if asked for")


class ChatLogprobs(BaseModel):
    content: list[ScoredToken] = Field(description="one for each token that the text is made of")
    refusal: None = Field(default=None, description="always null")


class CompletionLogprobs(BaseModel):
    tokens: list[str] = Field(description="one for each token that the text is made of")
    token_logprobs: list[float] = Field(description="the model's own, before temperature and penalties")
    top_logprobs: list[dict[str, float]] = Field(description="of the drawn token, and of the likeliest")
    text_offset: list[int] = Field(description="where each begins in the choice's text, characters")


class Scored(NamedTuple):
    """A token of an answer. start: where it begins in the text, characters"""

    token: int
    start: int
    logprobs: TokenLogprobs


class PendingLogprobs:
    """Holds tokens back until the text that they begin in is sent: none is reported that a stop string cuts
    off, whatever the timing was.
    """

    __slots__ = ("_held", "_length", "_sent")

    def __init__(self) -> None:
        self._held: deque[Scored] = deque()
        self._length = 0
        self._sent = 0

    def add(self, token: int, text: str, logprobs: TokenLogprobs) -> None:
        """text: the characters that the token completes"""
        self._held.append(Scored(token, self._length, logprobs))
        self._length += len(text)

    def sent(self, characters: int) -> tuple[Scored, ...]:
        """That many more characters are on their way: the tokens that begin in them."""
        self._sent += characters
        out: list[Scored] = []
        while self._held and self._held[0].start < self._sent:
            out.append(self._held.popleft())
        return tuple(out)

    def rest(self) -> tuple[Scored, ...]:
        """At an end that no stop string made: all that is left."""
        out = tuple(self._held)
        self._held.clear()
        return out


class TokenNames:
    """How a token id is written for a client."""

    def __init__(self, backend: Backend, token_bytes: TokenBytes) -> None:
        self._bytes = token_bytes
        added = backend.get_added_tokens_decoder()
        self._special = {token: each.content.encode() for token, each in added.items() if each.special}

    def bytes_of(self, token: int) -> bytes:
        return self._special.get(token) or self._bytes[token]

    def name(self, token: int, prefix: str = "") -> str:
        """Its text, `prefix` and escaped bytes if that is no text, or `token_id:N` if there is no token."""
        raw = self.bytes_of(token)
        if not raw:
            return f"token_id:{token}"
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return prefix + "".join(f"\\x{byte:02x}" for byte in raw)

    def chat(self, tokens: tuple[Scored, ...]) -> ChatLogprobs:
        return ChatLogprobs(content=[self._scored(each) for each in tokens])

    def completion(self, tokens: tuple[Scored, ...]) -> CompletionLogprobs:
        def name(token: int) -> str:
            return self.name(token, "bytes:")

        return CompletionLogprobs(
            tokens=[name(each.token) for each in tokens],
            token_logprobs=[_finite(each.logprobs.logprob) for each in tokens],
            top_logprobs=[
                {name(each.token): _finite(each.logprobs.logprob)}
                | {name(token): _finite(logprob) for token, logprob in _top(each.logprobs)}
                for each in tokens
            ],
            text_offset=[each.start for each in tokens],
        )

    def _scored(self, each: Scored) -> ScoredToken:
        drawn = self._top_logprob(each.token, each.logprobs.logprob)
        top = [self._top_logprob(token, logprob) for token, logprob in _top(each.logprobs)]
        return ScoredToken(**drawn.model_dump(), top_logprobs=top)

    def _top_logprob(self, token: int, logprob: float) -> TopLogprob:
        raw = self.bytes_of(token)
        return TopLogprob(token=self.name(token), logprob=_finite(logprob), bytes=list(raw) if raw else None)


def _top(logprobs: TokenLogprobs) -> list[tuple[int, float]]:
    return list(zip(logprobs.top_ids, logprobs.top_logprobs, strict=True))


def _finite(logprob: float) -> float:
    return max(_LEAST, logprob)
