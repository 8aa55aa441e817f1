"""A conversation with tools as a chat template takes it.

A template that does not read `tools` gets them as text: in the system message, calls as the Hermes format
writes them, and their results as turns of the user.
"""

import json
from typing import Any

from services.gateway.schema import ChatRequest, Message
from services.gateway.structured.formats import Hermes
from services.gateway.tokenizer import ChatMessage, turn

_INSTRUCTIONS = """You can call these functions, each described by a line of JSON:
{functions}
To call one, answer with its name and arguments in this form, and with nothing after it:
<tool_call>
{{"name": "the name", "arguments": {{"parameter": "value"}}}}
</tool_call>
The result comes back between <tool_response> and </tool_response>."""


def native_tools(request: ChatRequest) -> list[dict[str, Any]] | None:
    """`tools` as templates read them: OpenAI's form without what was not sent."""
    return [tool.model_dump(exclude_none=True) for tool in request.offered_tools] or None


def native_turns(request: ChatRequest) -> list[ChatMessage]:
    """For a template that reads `tools`."""
    turns: list[ChatMessage] = []
    for message in request.messages:
        said = turn(message.role, message.text)
        if message.tool_calls:
            said["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.function.name, "arguments": call.function.parsed},
                }
                for call in message.tool_calls
            ]
        if message.tool_call_id is not None:
            said["tool_call_id"] = message.tool_call_id
            said["name"] = _called(request, message)
        turns.append(said)
    return turns


def plain_turns(request: ChatRequest, hermes: Hermes) -> list[ChatMessage]:
    """For any other template: text alone, in the roles that it knows."""
    turns: list[ChatMessage] = []
    answered = False  # by a tool, in the last turn
    for message in request.messages:
        text = message.text
        if message.role == "tool":
            text = f"<tool_response>\n{text}\n</tool_response>"
            if answered:  # templates want user and assistant by turns
                turns[-1]["content"] += f"\n{text}"
            else:
                turns.append(turn("user", text))
            answered = True
            continue
        answered = False
        calls = [
            hermes.written(call.function.name, call.function.parsed) for call in message.tool_calls or ()
        ]
        turns.append(turn(message.role, "\n".join(filter(None, [text, *calls]))))
    if request.offered_tools:
        _describe(request, turns)
    return turns


def _describe(request: ChatRequest, turns: list[ChatMessage]) -> None:
    functions = [
        json.dumps(tool.function.model_dump(exclude_none=True, exclude={"strict"}), ensure_ascii=False)
        for tool in request.offered_tools
    ]
    text = _INSTRUCTIONS.format(functions="\n".join(functions))
    if turns[0]["role"] == "system":
        turns[0]["content"] += f"\n\n{text}"
    else:
        turns.insert(0, turn("system", text))


def _called(request: ChatRequest, answer: Message) -> str:
    """The function whose result this is: some templates ask for its name."""
    calls = (call for message in request.messages for call in message.tool_calls or ())
    return next(call.function.name for call in calls if call.id == answer.tool_call_id)
