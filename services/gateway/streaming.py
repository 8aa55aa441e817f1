"""The generation loop of chat and completions: tokens -> characters -> stop strings -> pieces of text."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from services.gateway.admission import Job
from services.gateway.detokenize import Detokenizer, TokenBytes
from services.gateway.engine import Engine
from services.gateway.logprobs import PendingLogprobs, Scored
from services.gateway.stopping import StopStrings
from services.gateway.structured.calls import CallDelta, ToolCalls
from shared.messages import FinishReason, JobTokens


class Piece(NamedTuple):
    """What one delivery of tokens adds to the answer.

    text: may be empty while characters or a possible stop string are incomplete
    tokens: generated tokens behind it
    finish: "stop", "length" or "tool_calls" in the last piece
    logprobs: of the tokens that begin in `text`, if the request asks for them; the stop token has none
    calls: parts of tool calls, which come after the text
    token_ids: those tokens
    """

    text: str
    tokens: int
    finish: str | None
    logprobs: tuple[Scored, ...] = ()
    calls: tuple[CallDelta, ...] = ()
    token_ids: Sequence[int] = ()

    @property
    def says_nothing(self) -> bool:
        """To a client; its tokens may still count."""
        return not self.text and not self.calls and self.finish is None


class Generation:
    """One job's answer.

    cached_tokens: of the prompt, those that were not computed; known with the first token
    completion_tokens: generated so far; the stop token counts, as do the tokens of a stop string
    detokenize_s: seconds of computing spent here
    finish: why it ended, None before that
    """

    def __init__(self, engine: Engine, job: Job, token_bytes: TokenBytes, trace: str | None) -> None:
        self._engine = engine
        self._job = job
        self._trace = trace
        tools = job.tool_format
        shown = {tools.opening_id: tools.opening.encode()} if tools and tools.opening_id is not None else None
        self._detokenizer = Detokenizer(token_bytes, continues=job.continues, shown=shown)
        self._calls = ToolCalls(tools, job.functions, after_text=job.free_text) if tools else None
        self._unsent: tuple[Scored, ...] = ()
        self._stops = StopStrings(job.stops)
        self._logprobs = PendingLogprobs()
        self._echo = job.echo
        self.finish: str | None = None
        self.prompt_tokens = len(job.submit.prompt)
        self.cached_tokens = 0
        self.completion_tokens = 0
        self.detokenize_s = 0.0

    async def pieces(self) -> AsyncGenerator[Piece]:
        """The first piece is empty and says that the job was accepted; use it with `aclosing`.

        Raises like `Engine.generate`.
        """
        async with aclosing(self._engine.generate(self._job.submit, self._trace)) as items:
            async for item in items:
                started = time.perf_counter()
                piece = self._piece(item)
                self.detokenize_s += time.perf_counter() - started
                yield piece
                if piece.finish is not None:
                    return

    def _piece(self, item: JobTokens) -> Piece:
        if not self.completion_tokens:  # later on, the job may have been computed anew
            self.cached_tokens = min(item.cached, self.prompt_tokens)
        # Token by token, also where several wait: a stop string must end the answer at the same token
        # whatever the timing was.
        texts: list[str] = []
        last = len(item.tokens) - 1 if item.finish is FinishReason.STOP else -1
        for i, token in enumerate(item.tokens):
            if i != last:  # the stop token is no part of the text
                text = self._detokenizer.feed(token)
                if item.logprobs:
                    self._logprobs.add(token, text, item.logprobs[i])
                may_end = self.completion_tokens + i >= self._job.submit.min_tokens
                texts.append(self._stops.feed(text, may_end=may_end))
            if self._stops.found:
                return self._counted(texts, item.tokens[: i + 1], "stop")
        if item.finish is None:
            return self._counted(texts, item.tokens, None)
        may_end = self.completion_tokens + len(item.tokens) > self._job.submit.min_tokens
        texts.append(self._stops.feed(self._detokenizer.flush(), may_end=may_end))
        texts.append(self._stops.flush())
        finish = "stop" if self._stops.found else item.finish.value
        return self._counted(texts, item.tokens, finish)

    def _counted(self, texts: list[str], tokens: list[int], finish: str | None) -> Piece:
        self.completion_tokens += len(tokens)
        text = "".join(texts)
        logprobs = self._unsent + self._logprobs.sent(len(text))
        if finish is not None and not self._stops.found:
            logprobs += self._logprobs.rest()
        if self._echo and (text or finish is not None):
            text, self._echo = self._echo + text, ""
        piece = Piece(text, len(tokens), finish, logprobs, token_ids=tokens)
        if self._calls is not None:
            piece = self._with_calls(piece, self._calls)
        self.finish = piece.finish
        # What is not sent to the client takes none of its log-probabilities along.
        self._unsent = piece.logprobs if piece.says_nothing else ()
        return piece._replace(logprobs=()) if piece.says_nothing else piece

    def _with_calls(self, piece: Piece, calls: ToolCalls) -> Piece:
        text, deltas = calls.feed(piece.text)
        finish = piece.finish
        if finish is not None:
            text += calls.flush()
        if finish == "stop" and calls.complete and not self._stops.found:
            finish = "tool_calls"
        return piece._replace(text=text, finish=finish, calls=tuple(deltas))
