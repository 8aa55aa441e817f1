"""The body of /v1/responses. Strict like those of chat and completions, and on the same fields."""

from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from services.gateway import unsupported
from services.gateway.response_items import InputItem, ResponseCall, ResponseCallOutput, turns_of
from services.gateway.schema import GenerationRequest, Message, Strict
from services.gateway.structured.fields import (
    MOST_TOOLS,
    Function,
    FunctionName,
    Name,
    NamedTool,
    ResponseFormat,
    Tool,
    ToolChoice,
    kind_of_choice,
)
from services.gateway.structured.form import Form, Paths, check_results, check_tools, form_of
from services.gateway.unsupported import without_neutral

MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)]

_PATHS = Paths("text.format", "text.format.schema", "tools[{}].parameters")


class ResponseTextFormat(Strict):
    """What chat calls response_format, without the level in between."""

    type: Literal["text", "json_object", "json_schema"] = Field(description="what the text is")
    name: Name | None = Field(None, description="names the schema; changes nothing")
    description: str | None = Field(None, description="what it is for; changes nothing")
    schema_: dict[str, Any] | None = Field(
        None, alias="schema", description="JSON Schema that the text is valid under"
    )
    strict: bool | None = Field(
        None, description="refuse a schema with keywords that cannot be enforced, instead of leaving them out"
    )

    @model_validator(mode="after")
    def _schema_if_named(self) -> "ResponseTextFormat":
        wanted = self.type == "json_schema"
        for name, value in (("schema", self.schema_), ("name", self.name)):
            if wanted and value is None:
                raise PydanticCustomError("value", "required with type: json_schema", {"param": name})
        for name, value in (("schema", self.schema_), ("name", self.name), ("strict", self.strict)):
            if not wanted and value is not None:
                raise PydanticCustomError("value", "only allowed with type: json_schema", {"param": name})
        return self

    @property
    def as_in_chat(self) -> ResponseFormat:
        if self.schema_ is None:
            return ResponseFormat.model_validate({"type": self.type})
        schema = {"name": self.name, "schema": self.schema_, "strict": self.strict}
        return ResponseFormat.model_validate({"type": self.type, "json_schema": schema})


class ResponseText(Strict):
    """What the answer's text is to be like."""

    model_config = ConfigDict(json_schema_extra=unsupported.in_schema(unsupported.RESPONSE_TEXT))

    format: ResponseTextFormat | None = Field(
        None, description="any text (default), any JSON object, or JSON that is valid under a schema"
    )

    @model_validator(mode="before")
    @classmethod
    def _unsupported(cls, fields: Any) -> Any:
        return without_neutral(fields, unsupported.RESPONSE_TEXT)


class _FunctionOnly(Strict):
    type: Literal["function"] = Field(description="only functions")


class ResponseTool(Function, _FunctionOnly):  # in this order the type is checked first
    """A function that can be called."""

    @property
    def as_in_chat(self) -> Tool:
        function = Function(
            name=self.name, description=self.description, parameters=self.parameters, strict=self.strict
        )
        return Tool(type="function", function=function)


class ResponseNamedTool(_FunctionOnly):
    name: Name = Field(description="one of tools, which is to be called")


ResponseToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("[mode]")]
    | Annotated[ResponseNamedTool, Tag("[function]")],
    Discriminator(kind_of_choice),
]


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

    input: str | Annotated[list[InputItem], Field(min_length=1, fail_fast=True)] = Field(
        description="a text, as the user's only turn, or the items of a conversation"
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
    text: ResponseText | None = Field(None, description="the format of the answer")
    tools: Annotated[list[ResponseTool], Field(max_length=MOST_TOOLS)] | None = Field(
        None, description="functions that the model may call"
    )
    tool_choice: ResponseToolChoice | None = Field(
        None, description="none, auto (default), required (at least one), or the function to call"
    )
    parallel_tool_calls: bool | None = Field(
        None, description="whether there may be several calls (default true)"
    )
    stream_options: ResponseStreamOptions | None = Field(None, description="nothing to choose so far")

    @model_validator(mode="before")
    @classmethod
    def _unsupported(cls, fields: Any) -> Any:
        fields = without_neutral(fields, unsupported.RESPONSE_STORED, unsupported.NOTHING_STORED)
        return without_neutral(fields, unsupported.RESPONSE)

    @model_validator(mode="after")
    def _tools_and_results(self) -> "ResponseRequest":
        names = [tool.name for tool in self.tools or ()]
        # Clients send this with whatever they ask.
        parallel = self.parallel_tool_calls if names else None
        check_tools(names, self._choice, parallel, self.ignore_eos, self.form)
        if not isinstance(self.input, str):
            check_results(
                (
                    f"input[{i}].call_id",
                    [item.call_id] if isinstance(item, ResponseCall) else [],
                    item.call_id if isinstance(item, ResponseCallOutput) else None,
                )
                for i, item in enumerate(self.input)
            )
        return self

    @property
    def prompt_field(self) -> str:
        return "input"

    @property
    def length_field(self) -> str:
        return "max_output_tokens"

    @property
    def messages(self) -> list[Message]:
        """The conversation as chat has it."""
        first = [_turn("system", self.instructions)] if self.instructions else []
        if isinstance(self.input, str):
            return [*first, _turn("user", self.input)]
        return [*first, *turns_of(self.input)]

    @cached_property
    def form(self) -> Form:
        content = self.text.format.as_in_chat if self.text and self.text.format else None
        tools = [tool.as_in_chat for tool in self.tools or ()]
        return form_of(content, tools, self._choice, self.parallel_tool_calls, _PATHS)

    @property
    def _choice(self) -> ToolChoice | None:
        if isinstance(self.tool_choice, ResponseNamedTool):
            return NamedTool(type="function", function=FunctionName(name=self.tool_choice.name))
        return self.tool_choice

    @property
    def top(self) -> int | None:
        return (self.top_logprobs or 0) if self.include or self.top_logprobs else None


def _turn(role: str, text: str) -> Message:
    return Message.model_validate({"role": role, "content": text})
