"""Answers in OpenAI's shape, whole and in chunks.

Chunks are glued from parts that were encoded once per request: a token costs one JSON string.
"""

import time
from typing import Any, Literal

import msgspec
from pydantic import BaseModel

from shared.ids import JobId

DONE = b"data: [DONE]\n\n"

FinishText = Literal["stop", "length"]

_encode = msgspec.json.encode


class Usage(BaseModel):
    """Token counts; the stop token is a completion token."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class AssistantMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(BaseModel):
    index: Literal[0] = 0
    message: AssistantMessage
    logprobs: None = None
    finish_reason: FinishText


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: None = None


class CompletionChoice(BaseModel):
    index: Literal[0] = 0
    text: str
    logprobs: None = None
    finish_reason: FinishText


class Completion(BaseModel):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    system_fingerprint: None = None


class Model(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "skipjoin"
    max_model_len: int | None


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]


class Answer:
    """One answer under way; the two kinds below differ in names and in how text is wrapped.

    include_usage: the counts come in an extra last chunk
    """

    prefix: str
    chunk_object: str

    def __init__(self, job_id: JobId, model: str, *, include_usage: bool) -> None:
        self.id = f"{self.prefix}-{job_id:016x}"
        self.created = int(time.time())
        self.model = model
        self._include_usage = include_usage
        head = {"id": self.id, "object": self.chunk_object, "created": self.created, "model": model}
        self._head = b"data: " + _encode(head)[:-1] + b',"system_fingerprint":null,"choices":['
        self._tail = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"

    def chunk(self, text: str, finish: str | None) -> bytes:
        """One event; empty if there is nothing to say yet."""
        if not text and finish is None:
            return b""
        reason = b"null" if finish is None else b'"' + finish.encode() + b'"'
        choice = b',"logprobs":null,"finish_reason":' + reason + b"}"
        return self._head + b'{"index":0,' + self._content(text) + choice + self._tail

    def last_events(self, usage: Usage) -> bytes:
        """What follows the last chunk."""
        if not self._include_usage:
            return DONE
        return self._head + b'],"usage":' + usage.model_dump_json().encode() + b"}\n\n" + DONE

    def whole(self, text: str, finish: Any, usage: Usage) -> bytes:
        """The body of an answer that was not streamed."""
        raise NotImplementedError

    def _content(self, text: str) -> bytes:
        raise NotImplementedError


class ChatAnswer(Answer):
    prefix = "chatcmpl"
    chunk_object = "chat.completion.chunk"
    _started = False

    def whole(self, text: str, finish: FinishText, usage: Usage) -> bytes:
        choice = ChatChoice(message=AssistantMessage(content=text), finish_reason=finish)
        answer = ChatCompletion(
            id=self.id, created=self.created, model=self.model, choices=[choice], usage=usage
        )
        return answer.model_dump_json().encode()

    def _content(self, text: str) -> bytes:
        if not self._started:  # the role goes with the first text: nothing is sent before there is one
            self._started = True
            return b'"delta":{"role":"assistant","content":' + _encode(text) + b"}"
        return b'"delta":{"content":' + _encode(text) + b"}" if text else b'"delta":{}'


class CompletionAnswer(Answer):
    prefix = "cmpl"
    chunk_object = "text_completion"

    def whole(self, text: str, finish: FinishText, usage: Usage) -> bytes:
        choice = CompletionChoice(text=text, finish_reason=finish)
        answer = Completion(id=self.id, created=self.created, model=self.model, choices=[choice], usage=usage)
        return answer.model_dump_json().encode()

    def _content(self, text: str) -> bytes:
        return b'"text":' + _encode(text)
