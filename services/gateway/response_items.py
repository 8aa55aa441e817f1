"""What the input of /v1/responses is made of: messages, calls that were made, and their results."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator

from services.gateway import unsupported
from services.gateway.schema import Message, Strict
from services.gateway.structured.fields import CalledFunction, EarlierCall
from services.gateway.unsupported import without_neutral

Role = Literal["system", "developer", "user", "assistant"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]
CallId = Annotated[str, Field(min_length=1)]


class ResponsePart(Strict):
    """Text. `annotations` and `logprobs` are taken, and left out of account, so that an answer can be sent
    back as it came.
    """

    type: Literal["input_text", "output_text"] = Field(description="output_text in the assistant's turns")
    text: str = Field(description="the text itself")
    annotations: list[Any] | None = Field(None, description="not used: comes with an answer sent back")
    logprobs: list[Any] | None = Field(None, description="not used: comes with an answer sent back")
    parsed: Any = Field(None, description="not used: the openai package has it beside the text")


Parts = Annotated[list[ResponsePart], Field(min_length=1, fail_fast=True)]


def joined(content: str | Sequence[ResponsePart]) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content)


class _Item(Strict):
    id: str | None = Field(None, description="not used: nothing is stored under it")
    status: ItemStatus | None = Field(None, description="not used: comes with an answer sent back")


class ResponseMessage(_Item):
    """One turn. `developer` is another name of `system`. Several parts are joined by line breaks."""

    type: Literal["message"] | None = Field(
        None, description="message (default), function_call or function_call_output"
    )
    role: Role = Field(description="whose turn it is")
    content: str | Parts = Field(description="a text or its parts")
    phase: Literal["commentary", "final_answer"] | None = Field(
        None, description="not used: comes with an answer sent back"
    )


class ResponseCall(_Item, CalledFunction):
    """A call that the assistant has made."""

    model_config = ConfigDict(json_schema_extra=unsupported.in_schema(unsupported.RESPONSE_CALL))

    type: Literal["function_call"] = Field(description="a call")
    call_id: CallId = Field(description="what its result refers to")

    @model_validator(mode="before")
    @classmethod
    def _unsupported(cls, fields: Any) -> Any:
        return without_neutral(fields, unsupported.RESPONSE_CALL)


class ResponseCallOutput(_Item):
    """The result of a call."""

    type: Literal["function_call_output"] = Field(description="a result")
    call_id: CallId = Field(description="the call that this is the result of")
    output: str | Parts = Field(description="a text or its parts")


def _kind_of_item(value: Any) -> str:
    # Written so that they are no part of the field's path in an error.
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return f"[{kind}]" if kind in ("function_call", "function_call_output") else "[message]"


InputItem = Annotated[
    Annotated[ResponseMessage, Tag("[message]")]
    | Annotated[ResponseCall, Tag("[function_call]")]
    | Annotated[ResponseCallOutput, Tag("[function_call_output]")],
    Discriminator(_kind_of_item),
]


def turns_of(items: Sequence[ResponseMessage | ResponseCall | ResponseCallOutput]) -> list[Message]:
    """As chat has them: calls belong to the assistant's turn that they follow."""
    turns: list[Message] = []
    for item in items:
        match item:
            case ResponseMessage():
                role = "system" if item.role == "developer" else item.role
                turns.append(Message.model_validate({"role": role, "content": joined(item.content)}))
            case ResponseCall():
                function = {"name": item.name, "arguments": item.arguments}
                call = EarlierCall.model_validate(
                    {"id": item.call_id, "type": "function", "function": function}
                )
                if turns and turns[-1].role == "assistant":
                    made = [*(turns[-1].tool_calls or ()), call]
                    turns[-1] = turns[-1].model_copy(update={"tool_calls": made})
                else:
                    turns.append(Message.model_validate({"role": "assistant", "tool_calls": [call]}))
            case ResponseCallOutput():
                result = {"role": "tool", "content": joined(item.output), "tool_call_id": item.call_id}
                turns.append(Message.model_validate(result))
    return turns
