"""JSON Schemas as rules of a grammar."""

import json
from typing import Any

from shared.errors import InvalidRequest

_OPTIONS = "x-guidance"
"""llguidance reads its options under this key of a schema; whatever a client writes there is replaced."""
_WHITESPACE = r" |\n[ \t]{0,32}"
"""Between the parts of a value: a blank, or a line break and an indentation. Without a bound, a small model
may write blanks until max_tokens."""

_LONGEST_PATTERN = 2048
"""Characters. llguidance counts its work on masks, but not that on a drawn token, which grows with the square
of a pattern: about 10 ms at this length, 9 s at 60,000."""

ANY_OBJECT: dict[str, Any] = {"type": "object"}


def json_rule(schema: dict[str, Any], *, strict: bool | None, field: str = "schema") -> str:
    """Rule body of a JSON value that is valid under `schema`.

    strict: keywords that cannot be enforced are refused when it is compiled, else they have no effect
    field: its path in the request
    Raises InvalidRequest.
    """
    options: dict[str, Any] = {"whitespace_pattern": _WHITESPACE}
    if not strict:
        options |= {"lenient": True, "coerce_one_of": True}
    _refuse_long_patterns(schema, field)
    return "%json " + json.dumps(schema | {_OPTIONS: options}, ensure_ascii=False)


def _refuse_long_patterns(schema: dict[str, Any], field: str) -> None:
    pending: list[Any] = [schema]
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending += node
        elif isinstance(node, dict):
            pending += node.values()
            keyed = node.get("patternProperties")  # what is no object here, llguidance refuses
            patterns = [node.get("pattern"), *(keyed if isinstance(keyed, dict) else ())]
            longest = max((len(each) for each in patterns if isinstance(each, str)), default=0)
            if longest > _LONGEST_PATTERN:
                raise InvalidRequest(
                    f"{field}: a pattern has {longest} characters, at most {_LONGEST_PATTERN} are taken",
                    param=field,
                    code="invalid_schema",
                )
