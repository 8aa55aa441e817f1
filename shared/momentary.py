"""A value that is made at most so often, however often it is asked for."""

from collections.abc import Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Momentary(Generic[_T]):
    """seconds: so long a value stays"""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._kept: tuple[float, _T] | None = None

    def get(self, now: float, make: Callable[[], _T]) -> _T:
        """The one that was made less than `seconds` before, or what `make` returns now."""
        if self._kept is None or now - self._kept[0] >= self._seconds:
            self._kept = now, make()
        return self._kept[1]
