"""The answers of /v1/responses: one object, or the events that build it up.

    created, in_progress ─> output_item.added, content_part.added ─> output_text.delta …
        ─> output_text.done, content_part.done, output_item.done ─> completed | incomplete
    at any time ─> failed

Every event carries the next `sequence_number`. There is no `[DONE]`: the last event says that it is the last.
"""

import time
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from pydantic import BaseModel, Field

from services.gateway.answers import Answer, Usage
from services.gateway.logprobs import ScoredToken, TokenNames
from services.gateway.refusals import Failure
from services.gateway.response_request import ResponseRequest
from services.gateway.streaming import Piece
from shared.ids import JobId

Status = Literal["in_progress", "completed", "incomplete", "failed"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]

_encode = msgspec.json.encode


class OutputText(BaseModel):
    type: Literal["output_text"] = "output_text"
    text: str = Field(description="the answer")
    annotations: list[Any] = Field(default=[], description="always empty")
    logprobs: list[ScoredToken] = Field(
        default=[], description="of the tokens that begin in the text, if asked for"
    )


class OutputMessage(BaseModel):
    type: Literal["message"] = "message"
    id: str = Field(description="msg_ and 16 hexadecimal digits")
    status: ItemStatus = Field(description="incomplete: cut at its longest length, or it failed")
    role: Literal["assistant"] = "assistant"
    content: list[OutputText] = Field(description="one part")


class InputTokensDetails(BaseModel):
    cached_tokens: int = Field(description="whose computation an earlier request had done already")
    cache_write_tokens: int = Field(default=0, description="always 0: what is kept costs nothing")


class OutputTokensDetails(BaseModel):
    reasoning_tokens: int = Field(default=0, description="always 0")


class ResponseUsage(BaseModel):
    """Token counts; the stop token is an output token."""

    input_tokens: int = Field(description="of the whole conversation")
    input_tokens_details: InputTokensDetails = Field(description="what the input cost")
    output_tokens: int = Field(description="of the answer")
    output_tokens_details: OutputTokensDetails = Field(description="what the answer is made of")
    total_tokens: int = Field(description="both together")

    @classmethod
    def of(cls, usage: Usage) -> "ResponseUsage":
        return cls(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens=usage.prompt_tokens_details.cached_tokens),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputTokensDetails(),
            total_tokens=usage.total_tokens,
        )


class ResponseError(BaseModel):
    code: str = Field(description="server_error, or what went wrong")
    message: str = Field(description="for people")


class IncompleteDetails(BaseModel):
    reason: Literal["max_output_tokens"] = Field(description="the answer was cut at its longest length")


class PlainText(BaseModel):
    type: Literal["text"] = "text"


class TextSettings(BaseModel):
    format: PlainText = Field(default=PlainText(), description="always plain text")


class ResponseObject(BaseModel):
    """An answer, as far as it is. Fields of the request come back in it."""

    id: str = Field(description="resp_ and 16 hexadecimal digits; /v1/requests knows it")
    object: Literal["response"] = "response"
    created_at: int = Field(description="seconds since 1970")
    completed_at: int | None = Field(default=None, description="seconds since 1970; null before its end")
    status: Status = Field(description="incomplete: cut at its longest length")
    error: ResponseError | None = Field(default=None, description="why it failed")
    incomplete_details: IncompleteDetails | None = Field(default=None, description="why it is not complete")
    model: str = Field(description="that generated it")
    output: list[OutputMessage] = Field(default=[], description="one message, once there is text")
    usage: ResponseUsage | None = Field(default=None, description="null before the end")
    instructions: str | None = Field(description="the request's")
    max_output_tokens: int | None = Field(description="the request's, tokens")
    metadata: dict[str, str] = Field(description="the request's")
    temperature: float = Field(description="the request's, or 1")
    top_p: float = Field(description="the request's, or 1")
    top_logprobs: int = Field(description="the request's, or 0")
    truncation: Literal["auto", "disabled"] = Field(description="the request's, or disabled")
    user: str | None = Field(description="the request's")
    text: TextSettings = Field(default=TextSettings(), description="format of the answer")
    tools: list[Any] = Field(default=[], description="always empty")
    tool_choice: Literal["none"] = "none"
    parallel_tool_calls: Literal[False] = False
    previous_response_id: None = Field(default=None, description="always null: nothing is stored")
    store: Literal[False] = False
    background: Literal[False] = False


class ResponseAnswer(Answer):
    """request: what is answered; the rest as for Answer"""

    prefix = "resp_"
    chunk_object = "response"

    def __init__(
        self,
        request: ResponseRequest,
        job_id: JobId,
        model: str,
        *,
        include_usage: bool,
        names: TokenNames | None,
        prompts: Sequence[list[int]] | None = None,
    ) -> None:
        super().__init__(job_id, model, include_usage=include_usage, names=names, prompts=prompts)
        self._request = request
        self._item_id = f"msg_{job_id:016x}"
        self._sequence = 0
        self._begun = False
        self._text: list[str] = []
        self._scored: list[ScoredToken] = []
        self._finish: str | None = None
        self._place = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        start = _encode({"type": "response.output_text.delta", **self._place})
        self._delta = b"event: response.output_text.delta\ndata: " + start[:-1]

    def first_events(self) -> bytes:
        body = self._response("in_progress").model_dump()
        return self._event("response.created", response=body) + self._event(
            "response.in_progress", response=body
        )

    def chunk(self, index: int, piece: Piece) -> bytes:
        if not piece.text and piece.finish is None:
            return b""
        event = b"" if self._begun else self._begin()
        self._text.append(piece.text)
        scored = self._logprobs_of(piece)
        self._scored += scored
        if piece.text or scored:
            event += self._text_delta(piece.text, scored)
        if piece.finish is not None:
            self._finish = piece.finish
            event += self._end()
        return event

    def last_events(self, usage: Usage) -> bytes:
        status = _status(self._finish)
        response = self._response(status, [self._message(status)], usage)
        return self._event(f"response.{status}", response=response.model_dump())

    def failed(self, failure: Failure) -> bytes:
        output = [self._message("incomplete")] if self._begun else []
        response = self._response("failed", output)
        response.error = ResponseError(code=failure.code or "server_error", message=failure.message)
        return self._event("response.failed", response=response.model_dump())

    def whole(self, choices: list[Piece], usage: Usage) -> bytes:
        (piece,) = choices
        self._text, self._scored = [piece.text], self._logprobs_of(piece)
        status = _status(piece.finish)
        return self._response(status, [self._message(status)], usage).model_dump_json().encode()

    def _begin(self) -> bytes:
        self._begun = True
        item = OutputMessage(id=self._item_id, status="in_progress", content=[])
        return self._event(
            "response.output_item.added", output_index=0, item=item.model_dump()
        ) + self._event("response.content_part.added", **self._place, part=OutputText(text="").model_dump())

    def _end(self) -> bytes:
        message = self._message(_status(self._finish))
        part = message.content[0].model_dump()
        return (
            self._event(
                "response.output_text.done", **self._place, text=part["text"], logprobs=part["logprobs"]
            )
            + self._event("response.content_part.done", **self._place, part=part)
            + self._event("response.output_item.done", output_index=0, item=message.model_dump())
        )

    def _text_delta(self, text: str, scored: list[ScoredToken]) -> bytes:
        logprobs = _encode([each.model_dump() for each in scored]) if scored else b"[]"
        rest = b',"logprobs":%b,"sequence_number":%d,"delta":%b}\n\n'
        return self._delta + rest % (logprobs, self._next(), _encode(text))

    def _event(self, kind: str, **fields: Any) -> bytes:
        body = _encode({"type": kind, **fields, "sequence_number": self._next()})
        return b"event: " + kind.encode() + b"\ndata: " + body + b"\n\n"

    def _next(self) -> int:
        number = self._sequence
        self._sequence += 1
        return number

    def _message(self, status: ItemStatus) -> OutputMessage:
        part = OutputText(text="".join(self._text), logprobs=self._scored)
        return OutputMessage(id=self._item_id, status=status, content=[part])

    def _logprobs_of(self, piece: Piece) -> list[ScoredToken]:
        return self._names.chat(piece.logprobs).content if self._names else []

    def _response(
        self, status: Status, output: list[OutputMessage] | None = None, usage: Usage | None = None
    ) -> ResponseObject:
        request = self._request
        return ResponseObject(
            id=self.id,
            created_at=self.created,
            completed_at=int(time.time()) if status == "completed" else None,
            status=status,
            incomplete_details=(
                IncompleteDetails(reason="max_output_tokens") if status == "incomplete" else None
            ),
            model=self.model,
            output=output or [],
            usage=ResponseUsage.of(usage) if usage else None,
            instructions=request.instructions,
            max_output_tokens=request.max_output_tokens,
            metadata=request.metadata or {},
            temperature=1.0 if request.temperature is None else request.temperature,
            top_p=1.0 if request.top_p is None else request.top_p,
            top_logprobs=request.top_logprobs or 0,
            truncation=request.truncation or "disabled",
            user=request.user,
        )


def _status(finish: str | None) -> Literal["completed", "incomplete"]:
    return "incomplete" if finish == "length" else "completed"
