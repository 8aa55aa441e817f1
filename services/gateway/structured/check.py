"""Whether a grammar can be compiled, before any header is sent and without holding up anybody else.

The last stage compiles it again: a gateway is no place to get masks from, and it takes about a millisecond.
"""

import asyncio
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from pathlib import Path

from llguidance import LLTokenizer

from services.gateway.structured.constraint import Constraint
from shared.errors import GrammarError, InvalidRequest
from shared.grammar import check, compile_grammar, vocabulary

_REMEMBERED = 1024

_Key = tuple[bytes, tuple[int, ...]]
"""Digest of the source, and the ends."""


class GrammarCheck:
    """One thread, so that hostile schemas wait for each other and for nobody else; what was found is kept."""

    def __init__(self, folder: Path) -> None:
        """folder: has the tokenizer.json"""
        self._folder = folder
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._vocabularies: dict[tuple[int, ...], LLTokenizer] = {}
        self._found: OrderedDict[_Key, InvalidRequest | None] = OrderedDict()

    async def check(self, constraint: Constraint, ends: list[int]) -> None:
        """ends: as in Grammar. Raises InvalidRequest that names the schema at fault and the reason."""
        key = sha256(constraint.source.encode()).digest(), tuple(ends)
        if key in self._found:
            self._found.move_to_end(key)
        else:
            loop = asyncio.get_running_loop()
            self._found[key] = await loop.run_in_executor(self._thread, partial(self._check, constraint, key))
            if len(self._found) > _REMEMBERED:
                self._found.popitem(last=False)
        error = self._found[key]
        if error is not None:
            raise InvalidRequest(error.message, param=error.param, code=error.code)

    # ------------------------------------------------------------ in the thread

    def _check(self, constraint: Constraint, key: _Key) -> InvalidRequest | None:
        found = self._found.get(key)
        if key in self._found:  # while this one waited for the thread
            return found
        tokens = self._vocabulary(key[1])
        error = _error(tokens, constraint.source)
        if error is None:
            return None
        if len(constraint.parts) == 1:
            return _refused(constraint.parts[0].field, error)
        for part in constraint.parts:
            own = _error(tokens, part.source)
            if own is not None:
                return _refused(part.field, own)
        return _refused(constraint.field, error)

    def _vocabulary(self, ends: tuple[int, ...]) -> LLTokenizer:
        if ends not in self._vocabularies:
            self._vocabularies[ends] = vocabulary(self._folder, ends)
        return self._vocabularies[ends]


def _error(tokens: LLTokenizer, source: str) -> GrammarError | None:
    try:
        matcher = compile_grammar(tokens, source)
        matcher.compute_bitmask()
        check(matcher)
    except GrammarError as error:
        return error
    return None


def _refused(field: str, error: GrammarError) -> InvalidRequest:
    return InvalidRequest(
        f"{field}: the schema cannot be enforced: {error}",
        param=field,
        code="invalid_schema",
    )
