"""What a stage's two hops carry, by way."""

from shared.metrics import Registry


class HopMetrics:
    """sent, received: bytes, and the seconds of one end: from having a tensor (or its descriptor) until it is
    gone (or here); blocked: seconds that a tensor waited for the next stage to take earlier ones
    """

    def __init__(self, registry: Registry, stage: int) -> None:
        self._stage = stage
        labels = ["stage", "way"]
        self._sent = registry.counter(
            "skipjoin_activation_sent_bytes", "Activations sent to the next stage.", labels
        )
        self._send = registry.counter(
            "skipjoin_activation_send_seconds", "Time to send them, without waiting for credit.", labels
        )
        self._received = registry.counter(
            "skipjoin_activation_received_bytes", "Activations received from the stage before.", labels
        )
        self._receive = registry.counter(
            "skipjoin_activation_receive_seconds",
            "Time from the descriptor of an activation to having it whole.",
            labels,
        )
        self._blocked = registry.counter(
            "skipjoin_activation_blocked_seconds",
            "Time that activations waited for the next stage to take earlier ones.",
            ["stage"],
        )

    def sent(self, way: str, size: int, seconds: float) -> None:
        self._sent.labels(self._stage, way).inc(size)
        self._send.labels(self._stage, way).inc(seconds)

    def received(self, way: str, size: int, seconds: float) -> None:
        self._received.labels(self._stage, way).inc(size)
        self._receive.labels(self._stage, way).inc(seconds)

    def blocked(self, seconds: float) -> None:
        self._blocked.labels(self._stage).inc(seconds)
