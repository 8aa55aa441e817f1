"""How long a client wants to wait at most: the field `timeout` or the header X-Request-Timeout."""

import math

from starlette.requests import Request

from shared.errors import InvalidRequest

HEADER = "X-Request-Timeout"


def deadline_of(request: Request, field: float | None, limit: float) -> float | None:
    """Seconds from the request's arrival, the shorter of the two; None if the client named none.

    Raises InvalidRequest.
    """
    given = request.headers.get(HEADER)
    stated = [(name, seconds) for name, seconds in (("timeout", field), (HEADER, _seconds(given))) if seconds]
    for name, seconds in stated:
        if seconds > limit:
            raise InvalidRequest(
                f"{name}: at most {limit:g} seconds are allowed (gateway.max_timeout_s), got {seconds:g}",
                param=name,
            )
    return min((seconds for _, seconds in stated), default=None)


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise InvalidRequest(
            f"{HEADER}: must be a number of seconds above 0, got {text[:40]!r}", param=HEADER
        )
    return seconds
