"""What /v1/responses answers, as objects."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from services.gateway.answers import Usage
from services.gateway.logprobs import ScoredToken
from services.gateway.response_items import ItemStatus
from services.gateway.response_request import ResponseNamedTool, ResponseTextFormat, ResponseTool

Status = Literal[ItemStatus, "failed"]


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


class OutputCall(BaseModel):
    type: Literal["function_call"] = "function_call"
    id: str = Field(description="fc_ and hexadecimal digits")
    call_id: str = Field(description="names the call; the item that has its result refers to it")
    name: str = Field(description="the function's")
    arguments: str = Field(description="JSON as the model wrote it; complete if the item is")
    status: ItemStatus = Field(description="incomplete: max_output_tokens or a stop string cut it")


OutputItem = OutputMessage | OutputCall


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


class TextSettings(BaseModel):
    format: ResponseTextFormat = Field(description="the request's, or plain text")


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
    output: list[OutputItem] = Field(default=[], description="a message, once there is text, and calls")
    usage: ResponseUsage | None = Field(default=None, description="null before the end")
    instructions: str | None = Field(description="the request's")
    max_output_tokens: int | None = Field(description="the request's, tokens")
    metadata: dict[str, str] = Field(description="the request's")
    temperature: float = Field(description="the request's, or 1")
    top_p: float = Field(description="the request's, or 1")
    top_logprobs: int = Field(description="the request's, or 0")
    truncation: Literal["auto", "disabled"] = Field(description="the request's, or disabled")
    user: str | None = Field(description="the request's")
    text: TextSettings = Field(description="format of the answer")
    tools: list[ResponseTool] = Field(description="the request's")
    tool_choice: Literal["none", "auto", "required"] | ResponseNamedTool = Field(
        description="the request's; without tools none"
    )
    parallel_tool_calls: bool = Field(description="the request's; without tools false")
    previous_response_id: None = Field(default=None, description="always null: nothing is stored")
    store: Literal[False] = False
    background: Literal[False] = False
