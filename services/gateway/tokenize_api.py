"""`/tokenize` and `/detokenize`: what the model sees of a text, and the text of token ids."""

import asyncio
from typing import Annotated, Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from services.gateway import unsupported
from services.gateway.openapi import ERRORS
from services.gateway.schema import Message, Strict, TokenIds, check_turns
from services.gateway.serving import Serving
from services.gateway.structured.fields import MOST_TOOLS, Tool
from services.gateway.tokenizer import Tokenizer
from services.gateway.unsupported import without_neutral


class TokenizeRequest(Strict):
    """Either a prompt, tokenised as /v1/completions does, or messages, as /v1/chat/completions does."""

    model_config = ConfigDict(json_schema_extra=unsupported.in_schema(unsupported.TOKENIZE))

    model: str | None = Field(None, description="the name that /v1/models lists (default: the one served)")
    prompt: str | None = Field(None, description="a plain text")
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)] | None = Field(
        None, description="a conversation, put into the model's chat template"
    )
    tools: Annotated[list[Tool], Field(max_length=MOST_TOOLS)] | None = Field(
        None, description="functions that the model is shown; only with messages"
    )
    add_special_tokens: bool | None = Field(
        None, description="begin a prompt with the model's BOS token, if it has one (default true)"
    )
    return_token_strs: bool | None = Field(None, description="also write out each token (default false)")

    @model_validator(mode="before")
    @classmethod
    def _unsupported(cls, fields: Any) -> Any:
        return without_neutral(fields, unsupported.TOKENIZE)

    @model_validator(mode="after")
    def _one_source(self) -> "TokenizeRequest":
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError("value", "send either prompt or messages", {"param": "prompt"})
        if self.tools and self.messages is None:
            raise PydanticCustomError("value", "only allowed with messages", {"param": "tools"})
        check_turns(self.messages or [])
        if self.messages is not None and self.add_special_tokens is not None:
            raise PydanticCustomError(
                "value",
                "only allowed with a prompt: the chat template has them",
                {"param": "add_special_tokens"},
            )
        return self


class Tokens(BaseModel):
    count: int = Field(description="tokens")
    max_model_len: int | None = Field(description="longest prompt and answer, tokens; null while loading")
    tokens: list[int] = Field(description="token ids")
    token_strs: list[str] | None = Field(description="each token's text, or bytes as \\xe2, if asked for")


class DetokenizeRequest(Strict):
    model: str | None = Field(None, description="the name that /v1/models lists (default: the one served)")
    tokens: TokenIds = Field(description="token ids")


class Text(BaseModel):
    prompt: str = Field(description="the text, with special tokens written out")


def install(app: FastAPI, service: Serving, tokenizer: Tokenizer) -> None:
    @app.post("/tokenize", response_model=Tokens, responses=ERRORS, tags=["tokens"])
    async def tokenize(body: TokenizeRequest) -> Tokens:
        """Token ids of a prompt or a conversation."""
        _check_model(service, body.model)
        ids = await asyncio.to_thread(_ids, service, tokenizer, body)
        limits = service.engine.limits
        return Tokens(
            count=len(ids),
            max_model_len=limits.max_model_len if limits else None,
            tokens=ids,
            token_strs=[tokenizer.names.name(token) for token in ids] if body.return_token_strs else None,
        )

    @app.post("/detokenize", response_model=Text, responses=ERRORS, tags=["tokens"])
    async def detokenize(body: DetokenizeRequest) -> Text:
        """The text of token ids."""
        _check_model(service, body.model)
        service.admission.check_ids(body.tokens, "tokens")
        return Text(prompt=await asyncio.to_thread(tokenizer.text_of, body.tokens))


def _check_model(service: Serving, model: str | None) -> None:
    if model is not None:
        service.admission.check_model(model)


def _ids(service: Serving, tokenizer: Tokenizer, body: TokenizeRequest) -> list[int]:
    if body.messages is not None:
        return service.admission.conversation(body.messages, body.tools or [], "messages")
    special = body.add_special_tokens is not False
    return tokenizer.encode(body.prompt or "", special_tokens=special)
