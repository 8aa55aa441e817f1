"""What a grammar means: one reading for the gateway, which refuses, and the last stage, which masks.

llguidance bounds its own work by steps counted, not by time: what compiles on one machine does on another,
and a hostile schema costs half a second of one thread, without the interpreter's lock.
"""

from collections.abc import Sequence
from pathlib import Path

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from shared.errors import GrammarError

_LIMITS = LLParserLimits(max_grammar_size=20_000, verbose_errors=False)
"""Symbols of a grammar: 20,000 are a schema of about 1,500 properties, or 0.5 s for the worst that fits. The
others are llguidance's own: about 20 ms to build a lexer, 15 ms for the mask of one token."""
_LONGEST_REASON = 300
_OPTIONS = '%llguidance {"no_forcing": true}\n'
"""Where only one text can follow, llguidance would allow that text's usual tokens alone. Without, a token may
be drawn if and only if some answer goes on with its bytes: what a draw depends on stays simple to say.
"""


def vocabulary(folder: Path, ends: Sequence[int]) -> LLTokenizer:
    """The tokens of a model folder. ends: ids that end an answer.

    Takes 0.2 to 1 s and 60 MB or more: make it once, and not where something waits.
    """
    return LLTokenizer(str(folder / "tokenizer.json"), eos_token=list(ends))


def compile_grammar(tokens: LLTokenizer, source: str) -> LLMatcher:
    """A matcher at the beginning of an answer. source: in Lark. Raises GrammarError."""
    matcher = LLMatcher(tokens, _OPTIONS + source, log_level=0, limits=_LIMITS)
    check(matcher)
    return matcher


def check(matcher: LLMatcher) -> None:
    """Raises GrammarError if an earlier call has failed: matchers keep their errors to themselves."""
    if matcher.is_error():
        raise GrammarError(_reason(matcher.get_error()))


def _reason(error: str) -> str:
    """The library's text without the place in the source, which the client has not written."""
    text = error.partition("\n<non-verbose/>")[0].partition("\n   1 | ")[0]
    text = text.rpartition("failed to compile JSON schema: ")[2].strip()
    return text if len(text) <= _LONGEST_REASON else text[:_LONGEST_REASON] + " ..."
