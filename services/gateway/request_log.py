"""The log of one request: a line for each step of its life, with its id and its trace's.

    received ──> accepted ──> first token ──> finished
        └──────────┴──────────────┴─────────> aborted, failed or refused

A request whose body cannot be read has no `received`: it is refused before anything of it is known. No line
has text of the prompt unless `logging.prompts` asks for it, so refusals name the field and not its value.
"""

import logging
from collections.abc import Sequence

from opentelemetry.trace import Span

from shared.ids import JobId

log = logging.getLogger("skipjoin.gateway")

_ENDS = {
    "stop": ("finished", logging.INFO),
    "length": ("finished", logging.INFO),
    "abort": ("aborted", logging.INFO),
    "refused": ("refused", logging.INFO),
    "timeout": ("failed", logging.WARNING),
    "error": ("failed", logging.ERROR),
}


class RequestLog:
    """generates: it asks for an answer of the model; of others only the end is noted, on level DEBUG"""

    def __init__(self, method: str, endpoint: str, span: Span, *, generates: bool) -> None:
        context = span.get_span_context()
        self._trace_id = f"{context.trace_id:032x}" if context.is_valid else None
        self._method = method
        self._endpoint = endpoint
        self._generates = generates

    def received(self, request_id: str, *, stream: bool, choices: int, key: str | None) -> None:
        fields = {"endpoint": self._endpoint, "stream": stream, "choices": choices, "key": key}
        self._line(logging.INFO, "received", request_id, fields)

    def accepted(
        self, request_id: str, seconds: float, jobs: Sequence[JobId], tokens: int, prompts: list[str] | None
    ) -> None:
        """A scheduler has all its jobs. tokens: of its prompts; prompts: their text, if it is asked for"""
        names = [f"{job_id:016x}" for job_id in jobs]
        fields = {"seconds": _rounded(seconds), "jobs": names, "prompt_tokens": tokens, "prompts": prompts}
        self._line(logging.INFO, "accepted", request_id, fields)

    def first_token(self, request_id: str, seconds: float) -> None:
        self._line(logging.INFO, "first token", request_id, {"seconds": _rounded(seconds)})

    def ended(
        self, request_id: str, outcome: str, status: int, seconds: float, tokens: int, cause: str | None
    ) -> None:
        """tokens: drawn for it; cause: why it did not finish"""
        step, level = _ENDS.get(outcome, ("answered", logging.INFO))
        fields: dict[str, object] = {"outcome": outcome, "status": status or None, "cause": cause}
        if self._generates:
            fields["completion_tokens"] = tokens
        else:
            level = logging.DEBUG
            fields = {"method": self._method, "endpoint": self._endpoint, **fields}
        self._line(level, step, request_id, {**fields, "seconds": _rounded(seconds)})

    def _line(self, level: int, step: str, request_id: str, fields: dict[str, object]) -> None:
        if log.isEnabledFor(level):
            named = {"request_id": request_id, "trace_id": self._trace_id, **fields}
            log.log(level, "request %s", step, extra={"fields": named})


def _rounded(seconds: float) -> float:
    return round(seconds, 6)
