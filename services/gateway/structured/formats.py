"""How models write tool calls: one class per format, chosen by the model's chat template.

Every format is `HEAD arguments TAIL` between an opening and a close, with the name in the head:

    hermes   <tool_call>\\n{"name": "f", "arguments": {…}}\\n</tool_call>    Hermes, Qwen; and the fallback
    mistral  [TOOL_CALLS][{"name": "f", "arguments": {…}}, …]                Mistral
    llama    {"name": "f", "parameters": {…}}                                Llama 3.1 and later, one call

The grammar fixes each blank outside of the arguments, so that reading a call back needs no guessing.
"""

import json
import secrets
import string
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from services.gateway.structured.fields import Function
from services.gateway.structured.schemas import json_rule

_TEXT = r"TEXT: /(.|\n)*/"
_ALPHANUMERIC = string.ascii_letters + string.digits


def literal(text: str) -> str:
    """In the grammar's notation."""
    return json.dumps(text, ensure_ascii=False)


class ToolFormat(ABC):
    """opening: what a call begins with, after any text; empty if only a call can begin with `{`
    parallel: whether an answer may have several calls
    """

    opening: str
    parallel: bool
    arguments: str = "arguments"

    def __init__(self, opening_id: int | None = None) -> None:
        """opening_id: the special token that `opening` is, if it is one"""
        self.opening_id = opening_id

    def grammar(
        self, arguments: Mapping[str, str], *, text: str | None, must_call: bool, several: bool
    ) -> str:
        """Lark source of an answer.

        arguments: rule bodies, by the name of the function
        text: rule body of an answer without a call; None: any text, which may also go before a call
        must_call: an answer without a call is none
        several: more than one call is allowed
        """
        rules = [f"call: {' | '.join(f'f{i}' for i in range(len(arguments)))}"]
        for i, (name, rule) in enumerate(arguments.items()):
            rules.append(f"f{i}: {literal(self.head(name))} {rule} {literal('}')}")
        rules += self.calls(several=several and self.parallel, after_text=not must_call and text is None)
        answer = "calls" if must_call else f"({self.no_call if text is None else text}) | calls"
        return "\n".join([f"start: {answer}", *rules, _TEXT])

    no_call = "TEXT"
    """Rule body of free text without a call."""

    def head(self, name: str) -> str:
        return f'{{"name": "{name}", "{self.arguments}": '

    @abstractmethod
    def calls(self, *, several: bool, after_text: bool) -> list[str]:
        """The rule `calls`, out of `call` and TEXT, and what it needs."""

    def opener(self, *, after_text: bool) -> list[str]:
        """The rule `open`: the opening, after any text if that is allowed."""
        if self.opening_id is not None:
            return [f"open: {'TEXT ' if after_text else ''}<[{self.opening_id}]>"]
        if after_text:
            return [f"open[lazy]: TEXT {literal(self.opening)}"]
        return [f"open: {literal(self.opening)}"]

    def new_id(self) -> str:
        return f"call_{secrets.token_hex(12)}"


class Hermes(ToolFormat):
    opening = "<tool_call>"
    parallel = True
    close = "\n</tool_call>"

    def calls(self, *, several: bool, after_text: bool) -> list[str]:
        again = literal("\n") + (
            f" <[{self.opening_id}]>" if self.opening_id is not None else f" {literal(self.opening)}"
        )
        more = f" ({again} body)*" if several else ""
        rules = [f"calls: open body{more}", f"body: {literal(chr(10))} call {literal(self.close)}"]
        return [*self.opener(after_text=after_text), *rules]

    def written(self, name: str, arguments: dict[str, Any]) -> str:
        """A call as text, for templates that have no place for calls."""
        given = json.dumps(arguments, ensure_ascii=False)
        return f"{self.opening}\n{self.head(name)}{given}}}{self.close}"


class Mistral(ToolFormat):
    opening = "[TOOL_CALLS]"
    parallel = True

    def calls(self, *, several: bool, after_text: bool) -> list[str]:
        more = f" ({literal(', ')} call)*" if several else ""
        rules = ["calls: open list", f'list: " "? {literal("[")} call{more} {literal("]")}']
        return [*self.opener(after_text=after_text), *rules]

    def new_id(self) -> str:
        """Its templates refuse any other form."""
        return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))


class Llama(ToolFormat):
    opening = ""
    parallel = False
    arguments = "parameters"
    no_call = r"/[^{\s](.|\n)*/?"

    def calls(self, *, several: bool, after_text: bool) -> list[str]:
        return ["calls: call"]


FORMATS: dict[str, type[ToolFormat]] = {"hermes": Hermes, "mistral": Mistral, "llama": Llama}
_RECOGNISED = (("<tool_call>", "hermes"), ("[TOOL_CALLS]", "mistral"), ('"parameters"', "llama"))


def recognise(template: str) -> str | None:
    """The format that a chat template which reads `tools` asks for; None if it is none of these."""
    if "[ARGS]" in template or "<function=" in template:  # newer relatives, which do not write JSON so
        return None
    return next((name for mark, name in _RECOGNISED if mark in template), None)


def arguments_rule(function: Function, field: str) -> str:
    """Rule body of the arguments, always an object. field: the path of their schema.

    Raises InvalidRequest.
    """
    if function.parameters is None:
        return literal("{}")
    return json_rule({"type": "object"} | function.parameters, strict=function.strict, field=field)
