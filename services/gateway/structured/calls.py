"""Tool calls out of a stream of text, whatever the borders of its pieces are.

TEXT ──opening──> BETWEEN ──head──> ARGUMENTS ──the object ends──> BETWEEN ──head──> …
"""

from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

from services.gateway.structured.formats import ToolFormat


class CallDelta(NamedTuple):
    """What a piece of text adds to a call.

    number: of the call in its answer, from 0
    id, name: in the first delta of the call, else None
    """

    number: int
    id: str | None
    name: str | None
    arguments: str


class _State(Enum):
    TEXT = auto()
    BETWEEN = auto()
    """behind an opening or a call, where a head may follow"""
    ARGUMENTS = auto()


class ToolCalls:
    """Of one answer, which follows the format's grammar for these functions.

    after_text: free text may go before the first call; otherwise an answer is calls from its start, or text
    complete: a call was made and none is open
    """

    def __init__(self, tool_format: ToolFormat, names: Sequence[str], *, after_text: bool = True) -> None:
        self._format = tool_format
        self._after_text = after_text and bool(tool_format.opening)
        self._heads = {tool_format.head(name): name for name in names}
        self._beginnings = [tool_format.opening] if tool_format.opening else list(self._heads)
        self._state = _State.TEXT
        self._held = ""
        self._begun = False
        self._calls = 0
        self._object = _ObjectEnd()

    @property
    def complete(self) -> bool:
        return self._calls > 0 and self._state is _State.BETWEEN

    def feed(self, piece: str) -> tuple[str, list[CallDelta]]:
        """The text and the parts of calls that are certain now."""
        self._held += piece
        texts: list[str] = []
        deltas: list[CallDelta] = []
        while self._held and self._advance(texts, deltas):
            pass
        return "".join(texts), deltas

    def flush(self) -> str:
        """At the end: text that was held back because a call might have begun. The beginning of a call that
        has no name yet is dropped.
        """
        held, self._held = self._held, ""
        return held if self._state is _State.TEXT else ""

    def _advance(self, texts: list[str], deltas: list[CallDelta]) -> bool:
        """Take something off the held text; False if more must come first."""
        match self._state:
            case _State.TEXT:
                return self._text(texts)
            case _State.BETWEEN:
                return self._head(deltas)
            case _State.ARGUMENTS:
                return self._arguments(deltas)

    def _text(self, texts: list[str]) -> bool:
        if not self._after_text:
            return self._calls_or_text(texts)
        opening = self._format.opening
        at = self._held.find(opening)
        if at >= 0:
            # Line breaks between text and call belong to neither.
            texts.append(self._held[:at].rstrip())
            self._held = self._held[at + len(opening) :]
            self._state = _State.BETWEEN
            return True
        kept = len(self._held) - _overlap(self._held, opening)
        kept = len(self._held[:kept].rstrip())
        texts.append(self._held[:kept])
        self._held = self._held[kept:]
        return False

    def _calls_or_text(self, texts: list[str]) -> bool:
        if not self._begun:
            if any(self._held.startswith(beginning) for beginning in self._beginnings):
                self._state = _State.BETWEEN
                return True
            if any(beginning.startswith(self._held) for beginning in self._beginnings):
                return False
            self._begun = True
        texts.append(self._held)
        self._held = ""
        return False

    def _head(self, deltas: list[CallDelta]) -> bool:
        found = [(at, head) for head in self._heads if (at := self._held.find(head)) >= 0]
        if not found:
            return False
        at, head = min(found)
        self._held = self._held[at + len(head) :]
        deltas.append(CallDelta(self._calls, self._format.new_id(), self._heads[head], ""))
        self._calls += 1
        self._state = _State.ARGUMENTS
        self._object = _ObjectEnd()
        return True

    def _arguments(self, deltas: list[CallDelta]) -> bool:
        end = self._object.feed(self._held)
        taken = len(self._held) if end is None else end
        self._add(deltas, self._held[:taken])
        self._held = self._held[taken:]
        if end is not None:
            self._state = _State.BETWEEN
        return True

    def _add(self, deltas: list[CallDelta], arguments: str) -> None:
        """One delta per call and piece: clients add up those of different pieces, not those within one."""
        number = self._calls - 1
        if deltas and deltas[-1].number == number:
            deltas[-1] = deltas[-1]._replace(arguments=deltas[-1].arguments + arguments)
        else:
            deltas.append(CallDelta(number, None, None, arguments))


class _ObjectEnd:
    """Finds the brace that closes a JSON object."""

    __slots__ = ("_depth", "_escaped", "_quoted")

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = False
        self._escaped = False

    def feed(self, text: str) -> int | None:
        """The length of what belongs to the object, None if all of `text` does and it goes on."""
        for i, character in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._quoted:
                self._escaped = character == "\\"
                self._quoted = character != '"'
            elif character == '"':
                self._quoted = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if not self._depth:
                    return i + 1
        return None


def _overlap(text: str, word: str) -> int:
    """Length of the longest end of `text` that `word` begins with."""
    return next((n for n in range(min(len(text), len(word)), 0, -1) if text.endswith(word[:n])), 0)
