"""The answers of /v1/responses: one object, or the events that build it up.

    created, in_progress ─> [message] ─> [call]… ─> completed | incomplete
    message: output_item.added, content_part.added ─> output_text.delta …
        ─> output_text.done, content_part.done, output_item.done
    call: output_item.added ─> function_call_arguments.delta …
        ─> function_call_arguments.done, output_item.done
    at any time ─> failed

Every event carries the next `sequence_number`. There is no `[DONE]`: the last event says that it is the last.
"""

import time
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from services.gateway.answers import Answer, Usage
from services.gateway.logprobs import ScoredToken, TokenNames
from services.gateway.refusals import Failure
from services.gateway.response_items import ItemStatus
from services.gateway.response_object import (
    IncompleteDetails,
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputText,
    ResponseError,
    ResponseObject,
    ResponseUsage,
    Status,
    TextSettings,
)
from services.gateway.response_request import ResponseRequest, ResponseTextFormat
from services.gateway.streaming import Piece
from services.gateway.structured.calls import CallDelta
from shared.ids import JobId

_encode = msgspec.json.encode
_PLAIN = ResponseTextFormat.model_validate({"type": "text"})


class ResponseAnswer(Answer):
    """request: what is answered; the rest as for Answer"""

    prefix = "resp_"
    chunk_object = "response"

    def __init__(
        self,
        request: ResponseRequest,
        job_id: JobId,
        model: str,
        *,
        include_usage: bool,
        names: TokenNames | None,
        prompts: Sequence[list[int]] | None = None,
    ) -> None:
        super().__init__(job_id, model, include_usage=include_usage, names=names, prompts=prompts)
        self._request = request
        self._digits = f"{job_id:016x}"
        self._sequence = 0
        self._items: list[OutputItem] = []
        self._open = False
        """The last item is still being added to."""
        self._text: list[str] = []
        self._scored: list[ScoredToken] = []
        self._finish: str | None = None
        self._place = {"item_id": f"msg_{self._digits}", "output_index": 0, "content_index": 0}
        start = _encode({"type": "response.output_text.delta", **self._place})
        self._delta = b"event: response.output_text.delta\ndata: " + start[:-1]

    def first_events(self) -> bytes:
        body = _dump(self._response("in_progress"))
        return self._event("response.created", response=body) + self._event(
            "response.in_progress", response=body
        )

    def chunk(self, index: int, piece: Piece) -> bytes:
        event = b""
        if piece.text or (piece.finish is not None and not piece.calls and not self._items):
            event += self._add_text(piece.text, self._logprobs_of(piece))
        for call in piece.calls:
            event += self._add_call(call)
        if piece.finish is not None:
            self._finish = piece.finish
            event += self._close(_status(piece.finish))
        return event

    def last_events(self, usage: Usage) -> bytes:
        status = _status(self._finish)
        return self._event(f"response.{status}", response=_dump(self._response(status, usage)))

    def failed(self, failure: Failure) -> bytes:
        if self._open:
            self._settle(self._items[-1], "incomplete")
        response = self._response("failed")
        response.error = ResponseError(code=failure.code or "server_error", message=failure.message)
        return self._event("response.failed", response=_dump(response))

    def whole(self, choices: list[Piece], usage: Usage) -> bytes:
        (piece,) = choices
        self.chunk(0, piece)  # for the items
        return self._response(_status(piece.finish), usage).model_dump_json(by_alias=True).encode()

    # ------------------------------------------------------------ items

    def _add_text(self, text: str, scored: list[ScoredToken]) -> bytes:
        event = b""
        if not self._items:
            self._open = True
            self._items.append(OutputMessage(id=f"msg_{self._digits}", status="in_progress", content=[]))
            event = self._added(self._items[0]) + self._event(
                "response.content_part.added", **self._place, part=OutputText(text="").model_dump()
            )
        self._text.append(text)
        self._scored += scored
        return event + self._text_delta(text, scored) if text or scored else event

    def _add_call(self, delta: CallDelta) -> bytes:
        event = b""
        if delta.id is not None and delta.name is not None:
            event = self._close("completed")
            self._open = True
            item = OutputCall(
                id=f"fc_{self._digits}{delta.number:02x}",
                call_id=delta.id,
                name=delta.name,
                arguments="",
                status="in_progress",
            )
            self._items.append(item)
            event += self._added(item)
        call = self._items[-1]
        assert isinstance(call, OutputCall)  # its first delta has its name
        if delta.arguments:
            call.arguments += delta.arguments
            event += self._event(
                "response.function_call_arguments.delta", **self._place_of(call), delta=delta.arguments
            )
        return event

    def _close(self, status: ItemStatus) -> bytes:
        """End the item that is being added to, if one is."""
        if not self._open:
            return b""
        self._open = False
        item = self._items[-1]
        self._settle(item, status)
        if isinstance(item, OutputCall):
            event = self._event(
                "response.function_call_arguments.done", **self._place_of(item), arguments=item.arguments
            )
        else:
            part = item.content[0].model_dump()
            event = self._event(
                "response.output_text.done", **self._place, text=part["text"], logprobs=part["logprobs"]
            ) + self._event("response.content_part.done", **self._place, part=part)
        return event + self._event(
            "response.output_item.done", output_index=len(self._items) - 1, item=item.model_dump()
        )

    def _settle(self, item: OutputItem, status: ItemStatus) -> None:
        item.status = status
        if isinstance(item, OutputMessage):
            item.content = [OutputText(text="".join(self._text), logprobs=self._scored)]

    def _added(self, item: OutputItem) -> bytes:
        index = len(self._items) - 1
        return self._event("response.output_item.added", output_index=index, item=item.model_dump())

    def _place_of(self, call: OutputCall) -> dict[str, Any]:
        return {"item_id": call.id, "output_index": len(self._items) - 1}

    # ------------------------------------------------------------ events and objects

    def _text_delta(self, text: str, scored: list[ScoredToken]) -> bytes:
        logprobs = _encode([each.model_dump() for each in scored]) if scored else b"[]"
        rest = b',"logprobs":%b,"sequence_number":%d,"delta":%b}\n\n'
        return self._delta + rest % (logprobs, self._next(), _encode(text))

    def _event(self, kind: str, **fields: Any) -> bytes:
        body = _encode({"type": kind, **fields, "sequence_number": self._next()})
        return b"event: " + kind.encode() + b"\ndata: " + body + b"\n\n"

    def _next(self) -> int:
        number = self._sequence
        self._sequence += 1
        return number

    def _logprobs_of(self, piece: Piece) -> list[ScoredToken]:
        return self._names.chat(piece.logprobs).content if self._names else []

    def _response(self, status: Status, usage: Usage | None = None) -> ResponseObject:
        request = self._request
        tools = request.tools or []
        return ResponseObject(
            id=self.id,
            created_at=self.created,
            completed_at=int(time.time()) if status == "completed" else None,
            status=status,
            incomplete_details=(
                IncompleteDetails(reason="max_output_tokens") if status == "incomplete" else None
            ),
            model=self.model,
            output=self._items,
            usage=ResponseUsage.of(usage) if usage else None,
            instructions=request.instructions,
            max_output_tokens=request.max_output_tokens,
            metadata=request.metadata or {},
            temperature=1.0 if request.temperature is None else request.temperature,
            top_p=1.0 if request.top_p is None else request.top_p,
            top_logprobs=request.top_logprobs or 0,
            truncation=request.truncation or "disabled",
            user=request.user,
            text=TextSettings(format=(request.text and request.text.format) or _PLAIN),
            tools=tools,
            tool_choice=(request.tool_choice or "auto") if tools else "none",
            parallel_tool_calls=bool(tools) and request.parallel_tool_calls is not False,
        )


def _dump(response: ResponseObject) -> dict[str, Any]:
    return response.model_dump(by_alias=True)


def _status(finish: str | None) -> Literal["completed", "incomplete"]:
    return "incomplete" if finish == "length" else "completed"
