"""`truncation: auto` of /v1/responses: what is left out of a conversation that is too long."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar


class Turn(Protocol):
    @property
    def role(self) -> str: ...


_T = TypeVar("_T", bound=Turn)


def latest_that_fit(messages: Sequence[_T], fits: Callable[[list[_T]], bool]) -> list[_T]:
    """All, or the system messages and as many of the latest turns as fit, beginning with one of the user.

    fits: true for a part of a conversation if it is for a larger one; it may be slow: O(log turns) calls. If
    not even the last turn of the user fits, that is returned, to be refused with its size.
    """
    starts = sorted({0, *(i for i, message in enumerate(messages) if message.role == "user")})

    def since(start: int) -> list[_T]:
        return [message for i, message in enumerate(messages) if i >= start or message.role == "system"]

    low, high = 0, len(starts) - 1
    while low < high:
        middle = (low + high) // 2
        if fits(since(starts[middle])):
            high = middle
        else:
            low = middle + 1
    return since(starts[low])
