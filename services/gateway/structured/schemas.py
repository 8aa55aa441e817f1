"""JSON Schemas as rules of a grammar."""

import json
from typing import Any

_OPTIONS = "x-guidance"
"""llguidance reads its options under this key of a schema; whatever a client writes there is replaced."""
_WHITESPACE = r" |\n[ \t]{0,32}"
"""Between the parts of a value: a blank, or a line break and an indentation. Without a bound, a small model
may write blanks until max_tokens."""

ANY_OBJECT: dict[str, Any] = {"type": "object"}


def json_rule(schema: dict[str, Any], *, strict: bool | None) -> str:
    """Rule body of a JSON value that is valid under `schema`.

    strict: keywords that cannot be enforced are refused when it is compiled, else they have no effect
    """
    options: dict[str, Any] = {"whitespace_pattern": _WHITESPACE}
    if not strict:
        options |= {"lenient": True, "coerce_one_of": True}
    return "%json " + json.dumps(schema | {_OPTIONS: options}, ensure_ascii=False)
