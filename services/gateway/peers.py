"""The other gateways of the application, by their Hello."""

from shared.messages import HELLO_STALE_S, Hello


class Gateways:
    """Pure; every `now` is in seconds on this gateway's clock. own: this gateway's instance"""

    def __init__(self, own: str) -> None:
        self._own = own
        self._heard: dict[str, float] = {}

    def hear(self, hello: Hello, now: float) -> None:
        if hello.service == "gateway" and hello.instance != self._own:
            self._heard[hello.instance] = now

    def others(self, now: float) -> list[str]:
        """Instances of those that are there."""
        self._heard = {name: heard for name, heard in self._heard.items() if now - heard <= HELLO_STALE_S}
        return sorted(self._heard)
