"""The one error hierarchy. Each error says what was wrong, the limit, and the remedy."""


class SkipjoinError(Exception):
    """Base of every error that Skipjoin raises on purpose."""


class ConfigError(SkipjoinError):
    """The configuration tree is wrong; the message starts with the path of the bad key."""


class InvalidRequest(SkipjoinError):
    """A client's request cannot be served as sent. The gateway answers `status` with this text.

    `param` is the request field, `code` OpenAI's machine-readable reason.
    """

    def __init__(
        self, message: str, *, param: str | None = None, code: str = "invalid_value", status: int = 400
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status


class NotReady(SkipjoinError):
    """The application is loading, draining or has lost a service; the client may retry later."""


class Overloaded(SkipjoinError):
    """A limit on what may be under way at once is reached; the client may retry in `retry_after` seconds.

    `kind` says what of: "requests" or "tokens"; `code` is the machine-readable reason.
    """

    def __init__(
        self, message: str, retry_after: float, *, kind: str = "requests", code: str = "rate_limit_exceeded"
    ) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after
        self.kind = kind
        self.code = code


class DeadlinePassed(SkipjoinError):
    """The time that the client allowed is over and its answer is not complete."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"timeout: the answer was not complete after the {seconds:g} s that the request allowed"
        )


class GenerationFailed(SkipjoinError):
    """A job ended by a failure inside the system, not by its own rules."""


class RequestCancelled(GenerationFailed):
    """Somebody cancelled the request by its id."""


class GrammarError(SkipjoinError):
    """A grammar cannot be compiled or followed; the message says why, in words for the client."""


class BusError(SkipjoinError):
    """Base of what can go wrong on the bus."""


class PayloadTooLarge(BusError):
    """Payload plus headers exceed the server's `max_payload`; nothing was sent."""

    def __init__(self, subject: str, size: int, limit: int) -> None:
        super().__init__(
            f"message for {subject} has {size} bytes with headers, the NATS server takes {limit}: "
            "raise max_payload in nats.conf or use another activation transport"
        )
        self.size = size
        self.limit = limit


class NoResponder(BusError):
    """Nobody serves the subject right now."""


class BusTimeout(BusError):
    """A request got no answer within its deadline."""


class ActivationLost(BusError):
    """Activations did not get from one stage to the next: nothing moved for `stage.transfer_timeout_s`, or
    the connection broke.
    """


class BusClosed(BusError):
    """The connection is gone for good (closed, or refused by the server)."""


class CheckpointError(SkipjoinError):
    """Weights cannot be found, read or matched to the model."""


class KVCapacityError(SkipjoinError):
    """A KV tier cannot be created or can never hold what was asked of it."""


class CopyFailed(SkipjoinError):
    """A KV transfer did not happen: the blocks at its destination are not to be read."""


class RankLost(SkipjoinError):
    """A rank of a stage has failed or is gone. The others cannot go on without it: the stage restarts."""
