"""A conversation with tools as a chat template takes it.

A template that does not read `tools` gets them as text: in the system message, calls as the Hermes format
writes them, and their results as turns of the user.
"""

import json
from collections.abc import Sequence
from typing import Any

from services.gateway.schema import Message
from services.gateway.structured.fields import Tool
from services.gateway.structured.formats import Hermes
from services.gateway.tokenizer import ChatMessage, turn

_INSTRUCTIONS = """You can call these functions, each described by a line of JSON:
{functions}
To call one, answer with its name and arguments in this form, and with nothing after it:
<tool_call>
{{"name": "the name", "arguments": {{"parameter": "value"}}}}
</tool_call>
The result comes back between <tool_response> and </tool_response>."""


def native_tools(tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
    """`tools` as templates read them: OpenAI's form without what was not sent."""
    return [tool.model_dump(exclude_none=True) for tool in tools] or None


def native_turns(messages: Sequence[Message]) -> list[ChatMessage]:
    """For a template that reads `tools`."""
    called = {call.id: call.function.name for message in messages for call in message.tool_calls or ()}
    turns: list[ChatMessage] = []
    for message in messages:
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
            # Some templates ask for it; the call itself may have been left out of a long conversation.
            said["name"] = called.get(message.tool_call_id, "")
        turns.append(said)
    return turns


def plain_turns(messages: Sequence[Message], tools: Sequence[Tool], hermes: Hermes) -> list[ChatMessage]:
    """For any other template: text alone, in the roles that it knows."""
    turns: list[ChatMessage] = []
    answered = False  # by a tool, in the last turn
    for message in messages:
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
    if tools:
        _describe(tools, turns)
    return turns


def _describe(tools: Sequence[Tool], turns: list[ChatMessage]) -> None:
    functions = [
        json.dumps(tool.function.model_dump(exclude_none=True, exclude={"strict"}), ensure_ascii=False)
        for tool in tools
    ]
    text = _INSTRUCTIONS.format(functions="\n".join(functions))
    if turns[0]["role"] == "system":
        turns[0]["content"] += f"\n\n{text}"
    else:
        turns.insert(0, turn("system", text))
