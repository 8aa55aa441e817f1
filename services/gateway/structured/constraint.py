"""From a request to the grammar of its answer."""

from typing import NamedTuple

from services.gateway.structured.fields import NamedTool
from services.gateway.structured.form import Form
from services.gateway.structured.formats import ToolFormat, arguments_rule
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


def constraint_of(form: Form, tool_format: ToolFormat, most_bytes: int) -> Constraint | None:
    """What the answer must match; None if nothing is asked for. Raises InvalidRequest for a grammar of more
    than `most_bytes` and for schemas that are too much work.
    """
    content = _content(form)
    tools = _callable_tools(form)
    if not tools:
        found = Constraint(f"start: {content.rule}", [content]) if content else None
    else:
        source = tool_format.grammar(
            {name: part.rule for name, part in tools.items()},
            text=content.rule if content else None,
            must_call=form.choice != "auto",
            several=form.parallel and not isinstance(form.choice, NamedTool),
        )
        found = Constraint(source, [*tools.values(), *([content] if content else [])])
    if found is not None and len(found.source.encode()) > most_bytes:
        raise InvalidRequest(
            f"{found.field}: the schemas make a grammar of {len(found.source.encode())} bytes; at most "
            f"{most_bytes} are taken (gateway.max_grammar_bytes)",
            param=found.field,
        )
    return found


def _content(form: Form) -> Part | None:
    """What text must match."""
    asked = form.content
    if asked is None or asked.type == "text":
        return None
    if asked.json_schema is None:
        return Part(form.paths.content, json_rule(ANY_OBJECT, strict=True))
    schema, field = asked.json_schema, form.paths.schema
    return Part(field, json_rule(schema.schema_, strict=schema.strict, field=field))


def _callable_tools(form: Form) -> dict[str, Part]:
    """The arguments of each function that may be called, by its name."""
    only = form.choice.function.name if isinstance(form.choice, NamedTool) else None
    found: dict[str, Part] = {}
    for i, tool in enumerate(form.tools):
        if only in (None, tool.function.name):
            field = form.paths.parameters.format(i)
            found[tool.function.name] = Part(field, arguments_rule(tool.function, field))
    return found
