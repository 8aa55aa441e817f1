"""Clocks. Cores take the time as an argument; shells and the simulator decide where it comes from."""

import time
from typing import Protocol

from shared.ids import Epoch


class Clock(Protocol):
    def now(self) -> float:
        """Seconds on a monotonic scale of this process."""
        ...


class MonotonicClock:
    def now(self) -> float:
        return time.monotonic()


class VirtualClock:
    """A clock that moves only when told to: for tests and the simulator."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"a clock cannot go back ({seconds} s)")
        self._now += seconds


def next_epoch(newest_seen: Epoch) -> Epoch:
    """A fencing number newer than `newest_seen`, also when this host's clock lags behind."""
    return Epoch(max(time.time_ns() // 1000, newest_seen + 1))
