"""Stop strings in a stream of text pieces: cut before the stop string, hold back no more than needed."""

from collections.abc import Sequence


class StopStrings:
    """Finds the first stop string to be completed, wherever the pieces' borders are.

    Matching is Knuth-Morris-Pratt, a character at a time, so the answer does not depend on how the text was
    cut into pieces, and the held-back tail is exactly the longest one that may still become a stop string.

    found: a stop string was completed; nothing more comes out
    """

    __slots__ = ("_failures", "_held", "_states", "_stops", "found")

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops`: not empty strings."""
        self._stops = list(stops)
        self._failures = [_failure_table(stop) for stop in self._stops]
        self._states = [0] * len(self._stops)
        self._held = ""
        self.found = False

    def feed(self, piece: str, *, may_end: bool = True) -> str:
        """The text that is now certain not to belong to a stop string.

        may_end: False while the answer is shorter than min_tokens: a stop string that ends here is plain text
        """
        if self.found or not self._stops:
            return "" if self.found else piece
        for end, character in enumerate(piece, 1):
            matched = self._advance(character)
            if matched and may_end:
                self.found = True
                text = self._held + piece[:end]
                self._held = ""
                return text[: len(text) - matched]
        text = self._held + piece
        sure = len(text) - max(self._states)
        self._held = text[sure:]
        return text[:sure]

    def flush(self) -> str:
        """At the end: what was held back and did not become a stop string."""
        text, self._held = self._held, ""
        return text

    def _advance(self, character: str) -> int:
        """Length of the longest stop string that this character completes, 0 if none."""
        longest = 0
        for i, stop in enumerate(self._stops):
            state, failure = self._states[i], self._failures[i]
            while state and stop[state] != character:
                state = failure[state - 1]
            if stop[state] == character:
                state += 1
            if state == len(stop):
                longest = max(longest, state)
                state = failure[state - 1]
            self._states[i] = state
        return longest


def _failure_table(stop: str) -> list[int]:
    """For every prefix of `stop`, the length of its longest proper prefix that is also its suffix."""
    table = [0] * len(stop)
    length = 0
    for i in range(1, len(stop)):
        while length and stop[length] != stop[i]:
            length = table[length - 1]
        if stop[length] == stop[i]:
            length += 1
        table[i] = length
    return table
