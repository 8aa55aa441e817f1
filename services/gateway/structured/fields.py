"""Request fields that prescribe an answer's form, and the turns of a conversation with tools."""

import json
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from services.gateway.strict import Strict

Name = Annotated[str, Field(pattern="^[a-zA-Z0-9_-]{1,64}$")]
MOST_TOOLS = 128


class JsonSchema(Strict):
    name: Name = Field(description="names the schema; changes nothing")
    description: str | None = Field(None, description="what it is for; changes nothing")
    schema_: dict[str, Any] = Field(alias="schema", description="JSON Schema that the answer is valid under")
    strict: bool | None = Field(
        None, description="refuse a schema with keywords that cannot be enforced, instead of leaving them out"
    )


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"] = Field(description="what an answer is")
    json_schema: JsonSchema | None = Field(None, description="only, and always, with type: json_schema")

    @model_validator(mode="after")
    def _schema_if_named(self) -> "ResponseFormat":
        if (self.type == "json_schema") != (self.json_schema is not None):
            said = "required with" if self.json_schema is None else "only allowed with"
            raise PydanticCustomError(
                "value", "{said} type: json_schema", {"param": "json_schema", "said": said}
            )
        return self


class Function(Strict):
    name: Name = Field(description="what calls of it name")
    description: str | None = Field(None, description="what it does, for the model")
    parameters: dict[str, Any] | None = Field(
        None, description="JSON Schema of an object (default: no parameters)"
    )
    strict: bool | None = Field(
        None,
        description="refuse parameters with keywords that cannot be enforced, instead of leaving them out",
    )

    @model_validator(mode="after")
    def _parameters_of_an_object(self) -> "Function":
        kind = (self.parameters or {}).get("type", "object")
        if kind != "object":
            raise PydanticCustomError(
                "value", "must describe an object (type: object)", {"param": "parameters"}
            )
        return self


class Tool(Strict):
    type: Literal["function"] = Field(description="only functions")
    function: Function = Field(description="what can be called")


class FunctionName(Strict):
    name: Name = Field(description="one of tools")


class NamedTool(Strict):
    type: Literal["function"] = Field(description="only functions")
    function: FunctionName = Field(description="what is to be called")


def kind_of_choice(value: Any) -> str:
    # Written so that they are no part of the field's path in an error.
    return "[mode]" if isinstance(value, str) else "[function]"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("[mode]")] | Annotated[NamedTool, Tag("[function]")],
    Discriminator(kind_of_choice),
]


class CalledFunction(Strict):
    name: Name = Field(description="what was called")
    arguments: str = Field(description="a JSON object, as text")
    parsed_arguments: Any = Field(None, description="ignored: the openai package has it beside the text")

    @model_validator(mode="after")
    def _arguments_are_an_object(self) -> "CalledFunction":
        try:
            parsed = json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):
            parsed = None
        if not isinstance(parsed, dict):
            raise PydanticCustomError("value", "must be the text of a JSON object", {"param": "arguments"})
        return self

    @property
    def parsed(self) -> dict[str, Any]:
        return json.loads(self.arguments or "{}")


class EarlierCall(Strict):
    """A call that the assistant has made in an earlier turn."""

    id: Annotated[str, Field(min_length=1)] = Field(description="what the result's turn refers to")
    type: Literal["function"] = Field(description="only functions")
    function: CalledFunction = Field(description="what was called, and with what")
    index: int | None = Field(None, description="ignored: streamed calls have it")
