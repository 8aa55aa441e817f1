"""The body of /v1/responses. Strict like those of chat and completions, and on the same fields."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from services.gateway import unsupported
from services.gateway.schema import GenerationRequest, Strict
from services.gateway.unsupported import without_neutral

Role = Literal["system", "developer", "user", "assistant"]
MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)]


class ResponsePart(Strict):
    """Text. `annotations` and `logprobs` are taken, and left out of account, so that an answer can be sent
    back as it came.
    """

    type: Literal["input_text", "output_text"] = Field(description="output_text in the assistant's turns")
    text: str = Field(description="the text itself")
    annotations: list[Any] | None = Field(None, description="not used: comes with an answer sent back")
    logprobs: list[Any] | None = Field(None, description="not used: comes with an answer sent back")


class ResponseMessage(Strict):
    """One turn. `developer` is another name of `system`. Several parts are joined by line breaks."""

    type: Literal["message"] | None = Field(None, description="only messages so far (default)")
    role: Role = Field(description="whose turn it is")
    content: str | Annotated[list[ResponsePart], Field(min_length=1, fail_fast=True)] = Field(
        description="a text or its parts"
    )
    id: str | None = Field(None, description="not used: nothing is stored under it")
    status: Literal["in_progress", "completed", "incomplete"] | None = Field(
        None, description="not used: comes with an answer sent back"
    )
    phase: Literal["commentary", "final_answer"] | None = Field(
        None, description="not used: comes with an answer sent back"
    )

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content)


class ResponseTextFormat(Strict):
    type: Literal["text"] = Field(description="only text so far")


class ResponseText(Strict):
    """What the answer's text is to be like."""

    model_config = ConfigDict(json_schema_extra=unsupported.in_schema(unsupported.RESPONSE_TEXT))

    format: ResponseTextFormat | None = Field(None, description="only plain text so far (default)")

    @model_validator(mode="before")
    @classmethod
    def _unsupported(cls, fields: Any) -> Any:
        return without_neutral(fields, unsupported.RESPONSE_TEXT)


class ResponseStreamOptions(Strict):
    """Nothing to choose so far: no padding is sent."""

    model_config = ConfigDict(json_schema_extra=unsupported.in_schema(unsupported.RESPONSE_STREAM_OPTIONS))

    @model_validator(mode="before")
    @classmethod
    def _unsupported(cls, fields: Any) -> Any:
        return without_neutral(fields, unsupported.RESPONSE_STREAM_OPTIONS)


class ResponseRequest(GenerationRequest):
    """Nothing is stored: conversations are sent whole, `store` may be false and is by default."""

    model_config = ConfigDict(
        json_schema_extra=unsupported.in_schema(unsupported.RESPONSE, unsupported.RESPONSE_STORED)
    )

    input: str | Annotated[list[ResponseMessage], Field(min_length=1, fail_fast=True)] = Field(
        description="a text, as the user's only turn, or the turns of a conversation"
    )
    instructions: str | None = Field(None, description="a system message before the input (default: none)")
    max_output_tokens: int | None = Field(
        None, ge=1, description="longest answer, tokens (default: what fits the model's context)"
    )
    top_logprobs: int | None = Field(
        None, ge=0, le=20, description="likeliest tokens to report beside each token, with its own logprob"
    )
    include: list[Literal["message.output_text.logprobs"]] | None = Field(
        None, description="report each token's log-probability (default: no)"
    )
    truncation: Literal["auto", "disabled"] | None = Field(
        None,
        description="auto: of an input that is too long the oldest turns are left out, but no system "
        "message; disabled (default): it is refused",
    )
    metadata: Metadata | None = Field(
        None, description="comes back in the response: up to 16 texts of 512 characters, keys up to 64"
    )
    text: ResponseText | None = Field(None, description="the format of the answer: plain text")
    stream_options: ResponseStreamOptions | None = Field(None, description="nothing to choose so far")

    @model_validator(mode="before")
    @classmethod
    def _unsupported(cls, fields: Any) -> Any:
        fields = without_neutral(fields, unsupported.RESPONSE_STORED, unsupported.NOTHING_STORED)
        return without_neutral(fields, unsupported.RESPONSE)

    @property
    def prompt_field(self) -> str:
        return "input"

    @property
    def length_field(self) -> str:
        return "max_output_tokens"

    @property
    def turns(self) -> list[tuple[str, str]]:
        """Role and text of each."""
        first = [("system", self.instructions)] if self.instructions else []
        if isinstance(self.input, str):
            return [*first, ("user", self.input)]
        return [*first, *((message.role, message.text) for message in self.input)]

    @property
    def top(self) -> int | None:
        return (self.top_logprobs or 0) if self.include or self.top_logprobs else None
