"""`return_token_ids`: the ids behind an answer, in the fields that vLLM has for them."""

from collections.abc import Sequence

import msgspec

from services.gateway.streaming import Piece

_encode = msgspec.json.encode


class ReturnedIds:
    """Of one streamed answer: its chunks' ids joined are all that usage counts, those without text too.

    prompts: of every choice
    """

    def __init__(self, prompts: Sequence[list[int]]) -> None:
        self.prompts = prompts
        self._unsent: list[list[int]] = [[] for _ in prompts]
        self._begun: set[int] = set()

    def note(self, index: int, piece: Piece) -> None:
        """Whether its text is sent now or not."""
        self._unsent[index] += piece.token_ids

    def of_choice(self, index: int) -> bytes:
        """The field of the choice, with a comma before it."""
        ids, self._unsent[index] = self._unsent[index], []
        return b',"token_ids":' + _encode(ids)

    def of_prompt(self, index: int) -> bytes:
        """The same of its prompt, once: it goes with the first chunk."""
        if index in self._begun:
            return b""
        self._begun.add(index)
        return b',"prompt_token_ids":' + _encode(self.prompts[index])
