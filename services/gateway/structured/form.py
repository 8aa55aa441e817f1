"""What a request prescribes of its answer's form, by whichever endpoint it came."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pydantic_core import PydanticCustomError

from services.gateway.structured.fields import NamedTool, ResponseFormat, Tool, ToolChoice


class Paths(NamedTuple):
    """Of what errors name in the body. parameters: of a function, with its number for the braces"""

    content: str
    schema: str
    parameters: str


class Form(NamedTuple):
    """content: what its text must be; None: any text
    tools: those that the model is shown
    choice: whether it calls them, or the one that it calls
    parallel: it may call several
    """

    content: ResponseFormat | None
    tools: Sequence[Tool]
    choice: ToolChoice
    parallel: bool
    paths: Paths

    @property
    def functions(self) -> tuple[str, ...]:
        return tuple(tool.function.name for tool in self.tools)

    @property
    def prescribes_text(self) -> bool:
        return self.content is not None and self.content.type != "text"


def form_of(
    content: ResponseFormat | None,
    tools: Sequence[Tool] | None,
    choice: ToolChoice | None,
    parallel: bool | None,
    paths: Paths,
) -> Form:
    """Of fields as they were sent. Nobody is shown tools that must not be called."""
    offered = () if choice == "none" else tools or ()
    return Form(content, offered, choice or "auto", parallel is not False, paths)


def check_tools(
    names: Sequence[str],
    choice: ToolChoice | None,
    parallel: bool | None,
    ignore_eos: bool | None,
    form: Form,
) -> None:
    """names: of all tools. Raises PydanticCustomError with the field in its context as `param`."""
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise PydanticCustomError("value", "two are called {name}", {"param": "tools", "name": twice})
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        raise PydanticCustomError("value", "names none of the tools", {"param": "tool_choice"})
    if not names and choice == "required":
        raise PydanticCustomError("value", "only allowed with tools", {"param": "tool_choice"})
    if not names and parallel is False:
        raise PydanticCustomError("value", "only allowed with tools", {"param": "parallel_tool_calls"})
    if ignore_eos and (form.prescribes_text or form.tools):
        raise PydanticCustomError(
            "value",
            "not allowed with {content} or tools: nothing can follow a complete answer",
            {"param": "ignore_eos", "content": form.paths.content},
        )


def check_results(turns: Iterable[tuple[str, Sequence[str], str | None]]) -> None:
    """That every result is that of an earlier call.

    turns: the path of the field that names a call, ids of calls made, id of the call that it is the result of
    Raises PydanticCustomError like `check_tools`.
    """
    made: set[str] = set()
    for path, calls, result_of in turns:
        made.update(calls)
        if result_of is not None and result_of not in made:
            raise PydanticCustomError("value", "names no call of an earlier turn", {"param": path})
