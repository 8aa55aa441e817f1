"""Answers in OpenAI's shape, whole and in chunks.

Chunks are glued from parts that were encoded once per request: a token costs one JSON string.
"""

import time
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from pydantic import BaseModel, Field

from services.gateway.logprobs import ChatLogprobs, CompletionLogprobs, TokenNames
from services.gateway.refusals import Failure
from services.gateway.streaming import Piece
from services.gateway.structured.calls import CallDelta
from services.gateway.token_ids import ReturnedIds
from shared.ids import JobId

DONE = b"data: [DONE]\n\n"

FinishText = Literal["stop", "length", "tool_calls"]
_FINISH = (
    "stop: by itself, or at a stop string or token; length: at the longest length that was asked for; "
    "tool_calls: functions are called"
)

_encode = msgspec.json.encode


class PromptTokensDetails(BaseModel):
    cached_tokens: int = Field(description="those whose computation an earlier request had done already")


class Usage(BaseModel):
    """Token counts; the stop token is a completion token."""

    prompt_tokens: int = Field(description="of each prompt once, however many answers it gets")
    completion_tokens: int = Field(description="of all answers")
    total_tokens: int = Field(description="both together")
    prompt_tokens_details: PromptTokensDetails = Field(description="what the prompts cost")


class AssistantMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str | None = Field(description="the answer's text; null if there are only tool_calls")
    refusal: None = Field(default=None, description="always null")


class FunctionCall(BaseModel):
    name: str = Field(description="the function's")
    arguments: str = Field(
        description="JSON as the model wrote it; complete unless max_tokens or a stop string cut the answer"
    )


class ToolCall(BaseModel):
    id: str = Field(description="names the call; the tool's turn that has its result refers to it")
    type: Literal["function"] = Field(default="function", description="always function")
    function: FunctionCall = Field(description="what is called, and with what")


class CallingMessage(AssistantMessage):
    tool_calls: list[ToolCall] = Field(description="functions to call, in this order")


def _absent(value: object) -> bool:
    return value is None


class ChatChoice(BaseModel):
    index: int = Field(description="number of the answer, from 0")
    message: CallingMessage | AssistantMessage = Field(description="the answer")
    logprobs: ChatLogprobs | None = Field(description="if asked for")
    finish_reason: FinishText = Field(description=_FINISH)
    token_ids: list[int] | None = Field(
        default=None, exclude_if=_absent, description="all that were generated, with return_token_ids"
    )


class ChatCompletion(BaseModel):
    id: str = Field(description="chatcmpl- and 16 hexadecimal digits; /v1/requests knows it")
    object: Literal["chat.completion"] = "chat.completion"
    created: int = Field(description="seconds since 1970")
    model: str = Field(description="that generated it")
    choices: list[ChatChoice] = Field(description="n answers")
    usage: Usage = Field(description="token counts")
    system_fingerprint: None = Field(default=None, description="always null")
    prompt_token_ids: list[int] | None = Field(
        default=None, exclude_if=_absent, description="of the prompt, with return_token_ids"
    )


class CompletionChoice(BaseModel):
    index: int = Field(description="number of the prompt times n, and of its answer, from 0")
    text: str = Field(description="the answer, behind the prompt with echo")
    logprobs: CompletionLogprobs | None = Field(description="if asked for")
    finish_reason: FinishText = Field(description=_FINISH)
    token_ids: list[int] | None = Field(
        default=None, exclude_if=_absent, description="all that were generated, with return_token_ids"
    )
    prompt_token_ids: list[int] | None = Field(
        default=None, exclude_if=_absent, description="of the prompt, with return_token_ids"
    )


class Completion(BaseModel):
    id: str = Field(description="cmpl- and 16 hexadecimal digits; /v1/requests knows it")
    object: Literal["text_completion"] = "text_completion"
    created: int = Field(description="seconds since 1970")
    model: str = Field(description="that generated it")
    choices: list[CompletionChoice] = Field(description="n answers to each prompt")
    usage: Usage = Field(description="token counts")
    system_fingerprint: None = Field(default=None, description="always null")


class Model(BaseModel):
    id: str = Field(description="the name that requests give as model")
    object: Literal["model"] = "model"
    created: int = Field(description="when this gateway started, seconds since 1970")
    owned_by: str = Field(default="skipjoin", description="always skipjoin")
    max_model_len: int | None = Field(description="longest prompt and answer, tokens; null while loading")


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model] = Field(description="the one that is served")


class Answer:
    """One answer under way: as its kind of event stream, or whole. This one has the chunks of chat and
    completions, which differ in names and in how text is wrapped.

    include_usage: the counts come in an extra last chunk
    names: for log-probabilities; None if the request asks for none
    prompts: token ids by choice, if the request asks for ids
    """

    prefix: str
    chunk_object: str

    def __init__(
        self, job_id: JobId, model: str, *, include_usage: bool, names: TokenNames | None,
        prompts: Sequence[list[int]] | None = None,
    ) -> None:  # fmt: skip
        self.id = f"{self.prefix}{job_id:016x}"
        self.created = int(time.time())
        self.model = model
        self._include_usage = include_usage
        self._names = names
        self._ids = None if prompts is None else ReturnedIds(prompts)
        head = {"id": self.id, "object": self.chunk_object, "created": self.created, "model": model}
        self._head = b"data: " + _encode(head)[:-1] + b',"system_fingerprint":null,"choices":['
        self._tail = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"

    def first_events(self) -> bytes:
        """What says that the request was accepted, before there is any text."""
        return b""

    def chunk(self, index: int, piece: Piece) -> bytes:
        """One event of choice `index`; empty if there is nothing to say yet."""
        if self._ids:
            self._ids.note(index, piece)
        if piece.says_nothing:
            return b""
        reason = b"null" if piece.finish is None else b'"' + piece.finish.encode() + b'"'
        logprobs = self._logprobs(piece) if piece.logprobs else None
        scored = b"null" if logprobs is None else logprobs.model_dump_json().encode()
        choice = b',"logprobs":' + scored + b',"finish_reason":' + reason
        if self._ids:
            choice += self._ids.of_choice(index)
        return self._head + b'{"index":%d,' % index + self._content(index, piece) + choice + self._rest(index)

    def last_events(self, usage: Usage) -> bytes:
        """What follows the last chunk."""
        if not self._include_usage:
            return DONE
        return self._head + b'],"usage":' + usage.model_dump_json().encode() + b"}\n\n" + DONE

    def failed(self, failure: Failure) -> bytes:
        """The end of a stream whose answer cannot be completed."""
        return b"data: " + failure.body() + b"\n\n" + DONE

    def whole(self, choices: list[Piece], usage: Usage) -> bytes:
        """The body of an answer that was not streamed."""
        raise NotImplementedError

    def _content(self, index: int, piece: Piece) -> bytes:
        raise NotImplementedError

    def _rest(self, index: int) -> bytes:
        """Of a chunk, from the end of its choice on."""
        raise NotImplementedError

    def _logprobs(self, piece: Piece) -> BaseModel | None:
        raise NotImplementedError


class ChatAnswer(Answer):
    prefix = "chatcmpl-"
    chunk_object = "chat.completion.chunk"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._started: set[int] = set()

    def whole(self, choices: list[Piece], usage: Usage) -> bytes:
        done = [
            ChatChoice(
                index=index,
                message=_message(piece),
                logprobs=self._logprobs(piece),
                finish_reason=_finish(piece),
                token_ids=list(piece.token_ids) if self._ids else None,
            )
            for index, piece in enumerate(choices)
        ]
        answer = ChatCompletion(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=done,
            usage=usage,
            prompt_token_ids=self._ids.prompts[0] if self._ids else None,
        )
        return answer.model_dump_json().encode()

    def _logprobs(self, piece: Piece) -> ChatLogprobs | None:
        return self._names.chat(piece.logprobs) if self._names else None

    def _content(self, index: int, piece: Piece) -> bytes:
        delta: dict[str, Any] = {}
        if (
            index not in self._started
        ):  # the role goes with the first text or call: nothing is sent before there is one
            self._started.add(index)
            delta = {"role": "assistant", "content": None if piece.calls and not piece.text else piece.text}
        elif piece.text:
            delta = {"content": piece.text}
        if piece.calls:
            delta["tool_calls"] = [_delta_of(call) for call in piece.calls]
        return b'"delta":' + _encode(delta)

    def _rest(self, index: int) -> bytes:
        """All choices have one prompt: it is told beside them."""
        prompt = self._ids.of_prompt(0) if self._ids else b""
        return b"}]" + prompt + self._tail[1:]


class CompletionAnswer(Answer):
    prefix = "cmpl-"
    chunk_object = "text_completion"

    def whole(self, choices: list[Piece], usage: Usage) -> bytes:
        done = [
            CompletionChoice(
                index=index,
                text=piece.text,
                logprobs=self._logprobs(piece),
                finish_reason=_finish(piece),
                token_ids=list(piece.token_ids) if self._ids else None,
                prompt_token_ids=self._ids.prompts[index] if self._ids else None,
            )
            for index, piece in enumerate(choices)
        ]
        answer = Completion(id=self.id, created=self.created, model=self.model, choices=done, usage=usage)
        return answer.model_dump_json().encode()

    def _logprobs(self, piece: Piece) -> CompletionLogprobs | None:
        return self._names.completion(piece.logprobs) if self._names else None

    def _content(self, index: int, piece: Piece) -> bytes:
        return b'"text":' + _encode(piece.text)

    def _rest(self, index: int) -> bytes:
        prompt = self._ids.of_prompt(index) if self._ids else b""
        return prompt + b"}" + self._tail


def _message(piece: Piece) -> AssistantMessage:
    if not piece.calls:
        return AssistantMessage(content=piece.text)
    calls: list[ToolCall] = []
    for delta in piece.calls:
        if delta.id is not None and delta.name is not None:
            calls.append(ToolCall(id=delta.id, function=FunctionCall(name=delta.name, arguments="")))
        calls[delta.number].function.arguments += delta.arguments
    return CallingMessage(content=piece.text or None, tool_calls=calls)


def _delta_of(call: CallDelta) -> dict[str, Any]:
    function = {"arguments": call.arguments}
    if call.name is None:
        return {"index": call.number, "function": function}
    return {
        "index": call.number,
        "id": call.id,
        "type": "function",
        "function": {"name": call.name} | function,
    }


def _finish(piece: Piece) -> Any:
    assert piece.finish is not None  # the last piece of every choice has one
    return piece.finish
