"""Whether a grammar can be compiled, before any header is sent and without holding up anybody else.

The last stage compiles it again: a gateway is no place to get masks from, and it takes about a millisecond.
"""

import asyncio
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from llguidance import LLTokenizer

from services.gateway.structured.constraint import Constraint
from shared.errors import GrammarError, InvalidRequest
from shared.grammar import check, compile_grammar, vocabulary

_REMEMBERED = 1024
_MOST_CPU_S = 0.5
"""To compile a grammar. The last stage needs it too, while a batch waits; usual schemas take 1 to 50 ms."""

_Key = tuple[str, tuple[int, ...]]


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
        key = constraint.source, tuple(ends)
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
        try:
            self._compile(tokens, constraint.source)
        except GrammarError as error:
            for part in constraint.parts:
                try:
                    self._compile(tokens, part.source)
                except GrammarError as own:
                    return _refused(part.field, own)
            return _refused(constraint.field, error)
        return None

    def _compile(self, tokens: LLTokenizer, source: str) -> None:
        """Raises GrammarError."""
        began = time.thread_time()
        matcher = compile_grammar(tokens, source)
        matcher.compute_bitmask()
        check(matcher)
        seconds = time.thread_time() - began
        if seconds > _MOST_CPU_S:
            raise GrammarError(
                f"it takes {seconds:.1f} s to compile, at most {_MOST_CPU_S} s are allowed; make it smaller"
            )

    def _vocabulary(self, ends: tuple[int, ...]) -> LLTokenizer:
        if ends not in self._vocabularies:
            self._vocabularies[ends] = vocabulary(self._folder, ends)
        return self._vocabularies[ends]


def _refused(field: str, error: GrammarError) -> InvalidRequest:
    return InvalidRequest(
        f"{field}: the schema cannot be enforced: {error}",
        param=field,
        code="invalid_schema",
    )
