"""From a request to the grammar of its answer."""

from typing import NamedTuple

from services.gateway.schema import ChatRequest
from services.gateway.structured.fields import Function, NamedTool
from services.gateway.structured.formats import ToolFormat, parameters_rule
from services.gateway.structured.schemas import ANY_OBJECT, json_rule
from shared.errors import InvalidRequest


class Part(NamedTuple):
    """A schema of the client's. field: its path in the body; rule: its rule body"""

    field: str
    rule: str

    @property
    def source(self) -> str:
        """A grammar of nothing else, to find out which of several schemas is at fault."""
        return f"start: {self.rule}"


class Constraint(NamedTuple):
    """source: the whole grammar; parts: the schemas that are in it"""

    source: str
    parts: list[Part]

    @property
    def field(self) -> str:
        return self.parts[0].field.partition(".")[0].partition("[")[0]


def constraint_of(request: ChatRequest, tool_format: ToolFormat, most_bytes: int) -> Constraint | None:
    """What the answer must match; None if nothing is asked for. Raises InvalidRequest for a grammar of more
    than `most_bytes`.
    """
    content = _content(request)
    functions = _functions(request)
    if not functions:
        found = Constraint(f"start: {content.rule}", [content]) if content else None
    else:
        parts = [
            Part(f"tools[{i}].function.parameters", parameters_rule(tool.function))
            for i, tool in enumerate(request.offered_tools)
            if tool.function in functions
        ]
        choice = request.tool_choice or "auto"
        several = request.parallel_tool_calls is not False and not isinstance(choice, NamedTool)
        source = tool_format.grammar(
            functions, text=content.rule if content else None, must_call=choice != "auto", several=several
        )
        found = Constraint(source, [*parts, *([content] if content else [])])
    if found is not None and len(found.source.encode()) > most_bytes:
        raise InvalidRequest(
            f"{found.field}: the schemas make a grammar of {len(found.source.encode())} bytes; at most "
            f"{most_bytes} are taken (gateway.max_grammar_bytes)",
            param=found.field,
        )
    return found


def _content(request: ChatRequest) -> Part | None:
    """What text must match."""
    asked = request.response_format
    if asked is None or asked.type == "text":
        return None
    if asked.json_schema is None:
        return Part("response_format", json_rule(ANY_OBJECT, strict=True))
    schema = asked.json_schema
    return Part("response_format.json_schema.schema", json_rule(schema.schema_, strict=schema.strict))


def _functions(request: ChatRequest) -> list[Function]:
    """Those that may be called."""
    choice = request.tool_choice
    functions = [tool.function for tool in request.offered_tools]
    if isinstance(choice, NamedTool):
        return [each for each in functions if each.name == choice.function.name]
    return functions
