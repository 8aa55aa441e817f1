"""Request bodies. Strict: `"1"` is no integer, `true` no number; null is absent; unknown fields are refused.

These models also make /openapi.json. What depends on the model or the deployment (vocabulary, limits) is
checked in admission.py.
"""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from services.gateway import unsupported
from services.gateway.strict import Strict
from services.gateway.structured.fields import (
    MOST_TOOLS,
    EarlierCall,
    ResponseFormat,
    Tool,
    ToolChoice,
)
from services.gateway.structured.form import Form, Paths, check_results, check_tools, form_of
from services.gateway.unsupported import without_neutral

TokenIds = Annotated[list[int], Field(fail_fast=True)]
StopString = Annotated[str, Field(min_length=1)]
Bias = Annotated[float, Field(ge=-100, le=100)]

_INT64 = 2**63
REQUEST_ID = "^[!-~]{1,128}$"
"""Printable ASCII: it goes into a header."""


class StreamOptions(Strict):
    model_config = ConfigDict(json_schema_extra=unsupported.in_schema(unsupported.STREAM_OPTIONS))

    include_usage: bool | None = Field(
        None, description="send the token counts in an extra last chunk (default false)"
    )

    @model_validator(mode="before")
    @classmethod
    def _unsupported(cls, fields: Any) -> Any:
        return without_neutral(fields, unsupported.STREAM_OPTIONS)


class GenerationRequest(Strict):
    """What every request for text has in common."""

    model: str = Field(description="the name that /v1/models lists")
    stream: bool | None = Field(None, description="answer in server-sent events (default false)")
    temperature: float | None = Field(None, ge=0, le=2, description="0 is greedy (default 1)")
    top_p: float | None = Field(None, gt=0, le=1, description="nucleus sampling (default 1: off)")
    top_k: int | None = Field(None, ge=-1, description="draw from the k likeliest tokens (default 0: off)")
    min_p: float | None = Field(
        None,
        ge=0,
        le=1,
        description="least probability, as a share of the likeliest token's (default 0: off)",
    )
    presence_penalty: float | None = Field(
        None, ge=-2, le=2, description="taken off the logits of tokens in the output (default 0)"
    )
    frequency_penalty: float | None = Field(
        None, ge=-2, le=2, description="the same, once per occurrence (default 0)"
    )
    repetition_penalty: float | None = Field(
        None, gt=0, le=100, description="divides the logits of tokens in prompt and output (default 1: off)"
    )
    logit_bias: Annotated[dict[str, Bias], Field(max_length=300)] | None = Field(
        None, description="token ids, as strings, to what is added to their logits; up to 300"
    )
    min_tokens: int | None = Field(
        None, ge=0, description="no end before so many tokens, but by max_tokens (default 0)"
    )
    seed: int | None = Field(
        None, ge=-_INT64, lt=_INT64, description="same seed, same answer (default: random)"
    )
    stop: StopString | Annotated[list[StopString], Field(max_length=4)] | None = Field(
        None, description="up to 4 strings that end the answer; they are not part of it"
    )
    stop_token_ids: TokenIds | None = Field(None, description="tokens that end the answer")
    ignore_eos: bool | None = Field(None, description="go on after the end-of-text token (default false)")
    user: str | None = Field(
        None, description="whose fair share this counts against, under scheduler.policy fair"
    )
    request_id: Annotated[str, Field(pattern=REQUEST_ID)] | None = Field(
        None, description="names the request in /v1/requests and X-Request-Id, before the header of that name"
    )
    timeout: float | None = Field(
        None, gt=0, description="seconds after which the request is given up (default: none)"
    )
    priority: int | None = Field(
        None, ge=-100, le=100, description="lower runs first, default 0; classes are strict"
    )
    cache_salt: str | None = Field(
        None,
        min_length=1,
        max_length=128,
        description="computed prompts are reused among requests with the same salt (default: those without)",
    )

    @property
    def prompt_field(self) -> str:
        """The field that errors about the prompt name."""
        return "prompt"

    @property
    def length_field(self) -> str:
        """The field that errors about the answer's length name."""
        return "max_tokens"

    @property
    def choices(self) -> int:
        """Answers to each prompt."""
        return 1

    @property
    def top(self) -> int | None:
        """How many alternatives to report beside each token; None: no log-probabilities."""
        raise NotImplementedError

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with token counts of its own."""
        return False

    @property
    def reports_ids(self) -> bool:
        """Whether the answer has token ids in it."""
        return False

    @property
    def stop_strings(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class ChoicesRequest(GenerationRequest):
    """What chat and completions have in common: several answers, and OpenAI's older streams."""

    stream_options: StreamOptions | None = Field(None, description="only with stream: true")
    max_tokens: int | None = Field(None, ge=1, description="longest answer, tokens")
    n: int | None = Field(None, ge=1, le=128, description="answers to each prompt (default 1)")
    best_of: int | None = Field(None, ge=1, description="only the same as n: all answers are returned")
    return_token_ids: bool | None = Field(
        None, description="report the ids of the prompt's and the answer's tokens (default false)"
    )

    @model_validator(mode="after")
    def _options_need_stream(self) -> "ChoicesRequest":
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError("value", "only allowed with stream: true", {"param": "stream_options"})
        return self

    @model_validator(mode="after")
    def _best_is_all(self) -> "ChoicesRequest":
        if self.best_of not in (None, self.choices):
            raise PydanticCustomError(
                "not_supported",
                "not supported yet but for n ({n}), since no answer is left out",
                {"param": "best_of", "n": self.choices, "got": self.best_of},
            )
        return self

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def reports_ids(self) -> bool:
        return bool(self.return_token_ids)


class TextPart(Strict):
    type: Literal["text"] = Field(description="only text so far")
    text: str = Field(description="the text itself")


class Message(Strict):
    """One turn. `developer` is another name of `system`. Several text parts are joined by line breaks."""

    model_config = ConfigDict(json_schema_extra=unsupported.in_schema(unsupported.MESSAGE))

    role: Literal["system", "developer", "user", "assistant", "tool"] = Field(
        description="whose turn it is; tool: the result of a call"
    )
    content: str | Annotated[list[TextPart], Field(min_length=1, fail_fast=True)] | None = Field(
        None, description="only an assistant's turn with tool_calls needs none"
    )
    tool_calls: list[EarlierCall] | None = Field(
        None, description="what the assistant has called in this turn"
    )
    tool_call_id: str | None = Field(None, description="role tool: the call that this is the result of")
    parsed: Any = Field(None, description="ignored: the openai package has it beside the content")

    @model_validator(mode="before")
    @classmethod
    def _unsupported(cls, fields: Any) -> Any:
        return without_neutral(fields, unsupported.MESSAGE)

    @model_validator(mode="after")
    def _only_its_role_has(self) -> "Message":
        if self.tool_calls and self.role != "assistant":
            raise PydanticCustomError("value", "only an assistant has made calls", {"param": "tool_calls"})
        if (self.tool_call_id is not None) != (self.role == "tool"):
            said = "required" if self.role == "tool" else "only allowed"
            raise PydanticCustomError(
                "value", "{said} with role: tool", {"param": "tool_call_id", "said": said}
            )
        if self.content is None and not self.tool_calls:
            raise PydanticCustomError("missing", "required", {"param": "content"})
        return self

    @property
    def text(self) -> str:
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "\n".join(part.text for part in self.content)


def check_turns(messages: list[Message]) -> None:
    """Raises PydanticCustomError for the result of a call that nobody has made."""
    check_results(
        (f"messages[{i}].tool_call_id", [call.id for call in each.tool_calls or ()], each.tool_call_id)
        for i, each in enumerate(messages)
    )


_CHAT_PATHS = Paths("response_format", "response_format.json_schema.schema", "tools[{}].function.parameters")


class ChatRequest(ChoicesRequest):
    model_config = ConfigDict(json_schema_extra=unsupported.in_schema(unsupported.CHAT))

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)] = Field(
        description="the turns so far; the answer is the next one of the assistant"
    )
    max_completion_tokens: int | None = Field(None, ge=1, description="the newer name of max_tokens")
    logprobs: bool | None = Field(None, description="report each token's log-probability (default false)")
    top_logprobs: int | None = Field(
        None, ge=0, le=20, description="likeliest tokens to report beside it; needs logprobs: true"
    )
    response_format: ResponseFormat | None = Field(
        None, description="any text (default), any JSON object, or JSON that is valid under a schema"
    )
    tools: Annotated[list[Tool], Field(max_length=MOST_TOOLS)] | None = Field(
        None, description="functions that the model may call"
    )
    tool_choice: ToolChoice | None = Field(
        None, description="none, auto (default), required (at least one), or the function to call"
    )
    parallel_tool_calls: bool | None = Field(
        None, description="whether there may be several calls (default true)"
    )

    @model_validator(mode="before")
    @classmethod
    def _unsupported(cls, fields: Any) -> Any:
        return without_neutral(fields, unsupported.CHAT)

    @model_validator(mode="after")
    def _one_maximum(self) -> "ChatRequest":
        if None not in (self.max_tokens, self.max_completion_tokens) and (
            self.max_tokens != self.max_completion_tokens
        ):
            raise PydanticCustomError(
                "value",
                "differs from max_tokens ({other}), which is its older name; send one of them",
                {"param": "max_completion_tokens", "other": self.max_tokens},
            )
        return self

    @model_validator(mode="after")
    def _top_needs_logprobs(self) -> "ChatRequest":
        if self.top_logprobs and not self.logprobs:
            raise PydanticCustomError("value", "only allowed with logprobs: true", {"param": "top_logprobs"})
        return self

    @model_validator(mode="after")
    def _tools_and_results(self) -> "ChatRequest":
        names = [tool.function.name for tool in self.tools or ()]
        check_tools(names, self.tool_choice, self.parallel_tool_calls, self.ignore_eos, self.form)
        check_turns(self.messages)
        return self

    @property
    def form(self) -> Form:
        return form_of(
            self.response_format, self.tools, self.tool_choice, self.parallel_tool_calls, _CHAT_PATHS
        )

    @property
    def prompt_field(self) -> str:
        return "messages"

    @property
    def length_field(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def top(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(ChoicesRequest):
    model_config = ConfigDict(json_schema_extra=unsupported.in_schema(unsupported.COMPLETION))

    prompt: (
        str
        | TokenIds
        | Annotated[list[str], Field(fail_fast=True)]
        | Annotated[list[TokenIds], Field(fail_fast=True)]
    ) = Field(description="a text, token ids, or a list of texts or of token id lists: n answers to each")
    echo: bool | None = Field(None, description="repeat the prompt before the answer; not with logprobs yet")
    logprobs: int | None = Field(
        None, ge=0, le=5, description="report each token's log-probability and so many likeliest tokens'"
    )

    @model_validator(mode="before")
    @classmethod
    def _unsupported(cls, fields: Any) -> Any:
        return without_neutral(fields, unsupported.COMPLETION)

    @model_validator(mode="after")
    def _no_prompt_logprobs(self) -> "CompletionRequest":
        if self.echo and self.logprobs is not None:
            raise PydanticCustomError(
                "not_supported",
                "not supported yet together with logprobs: those of prompt tokens are not computed",
                {"param": "echo", "got": True},
            )
        return self

    @property
    def top(self) -> int | None:
        return self.logprobs
