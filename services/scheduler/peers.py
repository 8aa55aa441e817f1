"""Who else is there: the services that the scheduler depends on, and those whose jobs it runs."""

import math

from shared.messages import Hello, Limits


class Peers:
    """Fed with Hello messages; times are seconds on the scheduler's clock."""

    def __init__(self, needed: list[str], stale_after_s: float) -> None:
        self._needed = needed
        self._stale_after_s = stale_after_s
        self._last: dict[str, Hello] = {}
        self._seen: dict[str, float] = {}

    def hear(self, hello: Hello, now: float) -> bool:
        """True if this peer was known and is now another process: what it held is lost."""
        if hello.service not in self._needed:
            return False
        before = self._last.get(hello.service)
        self._last[hello.service] = hello
        self._seen[hello.service] = now
        return before is not None and before.instance != hello.instance

    def forget(self, name: str) -> None:
        """It did not answer: missing until it says hello again."""
        self._seen.pop(name, None)

    def missing(self, now: float) -> list[str]:
        """Needed peers that are not ready or have gone silent."""
        return [name for name in self._needed if not self._here(name, now)]

    def _here(self, name: str, now: float) -> bool:
        hello = self._last.get(name)
        seen = self._seen.get(name, -math.inf)
        return hello is not None and hello.ready and now - seen <= self._stale_after_s

    def limits(self) -> Limits | None:
        """The tightest limits that any peer states."""
        stated = [hello.limits for hello in self._last.values() if hello.limits is not None]
        if not stated:
            return None
        return Limits(
            min(limits.max_model_len for limits in stated), min(limits.capacity for limits in stated)
        )


class Receivers:
    """Gateways, and the profiler: whoever submits jobs and waits for their tokens."""

    SERVICES = ("gateway", "profiler")

    def __init__(self, lost_after_s: float) -> None:
        self._lost_after_s = lost_after_s
        self._seen: dict[str, float] = {}

    def hear(self, hello: Hello, now: float) -> None:
        if hello.service in self.SERVICES:
            self._seen[hello.instance] = now

    def take_lost(self, now: float) -> list[str]:
        """Instances that have gone silent; each is named once. Nobody reads their jobs' tokens any more."""
        lost = [name for name, seen in self._seen.items() if now - seen > self._lost_after_s]
        for name in lost:
            del self._seen[name]
        return lost
