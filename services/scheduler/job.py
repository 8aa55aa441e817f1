"""One job as the scheduler sees it."""

from array import array
from collections.abc import Iterable

from shared.block_hashes import block_hashes
from shared.ids import JobId, StepId
from shared.messages import FinishReason, GrammarState, Submit, TokenHistory, TokenLogprobs


class Job:
    """Owned by the scheduler from submit to its finish.

    tokens: prompt and output so far; also its context once its next iteration is complete
    kv_tokens: KV entries it holds somewhere; 0 before its first iteration and after a drop
    step: the step it is in flight in, if any; it is never in two
    computing: tokens that this step computes
    cached: of its KV, entries that were there when its last prefill began, so that it did not compute them
    block_hashes: of the full blocks of its tokens, if its KV may be reused
    announced: the KV-cache manager has been sent them in this epoch
    request_id: the client's name for its request; choice: which answer of it this is
    arrived, waiting_since: seconds on the scheduler's clock
    level, quantum, used: its queue (0 is Q1), what it may use there and has used, seconds; the policy's
    rank: the policy's sort key, where it has one
    """

    __slots__ = (
        "_logprobs", "_prompt_seen", "_resubmitted", "announced", "arrived", "barred", "block_hashes",
        "cache_salt", "cached", "choice", "computing", "failures", "first_run", "grammar", "job_id",
        "kv_tokens", "level", "max_tokens", "min_tokens", "output", "predicted_output", "priority", "prompt",
        "quantum", "rank", "reply_to", "request_id", "sampling", "step", "stop_token_ids", "tenant",
        "tokens", "trace", "used", "waiting_since",
    )  # fmt: skip

    def __init__(self, submit: Submit, trace: str | None, now: float) -> None:
        self.job_id: JobId = submit.job_id
        self.reply_to = submit.reply_to
        self.prompt = submit.prompt
        self.output = list(submit.output)
        self.tokens = len(self.prompt) + len(self.output)
        self.max_tokens = submit.max_tokens
        self.sampling = submit.sampling
        self.min_tokens = submit.min_tokens
        self.barred = submit.barred_token_ids
        self.grammar = submit.grammar
        self._resubmitted = len(submit.output)
        self._logprobs: list[TokenLogprobs] = []
        penalised = submit.sampling.repetition_penalty != 1.0
        self._prompt_seen = _packed(set(submit.prompt)) if penalised else b""
        self.stop_token_ids = frozenset(submit.stop_token_ids)
        self.priority = submit.priority
        self.tenant = submit.tenant
        self.predicted_output = submit.predicted_output
        self.request_id = submit.request_id
        self.choice = submit.choice
        self.trace = trace
        self.arrived = now - submit.waited
        self.waiting_since = self.arrived
        self.first_run: float | None = None
        self.kv_tokens = 0
        self.cached = 0
        self.cache_salt = submit.cache_salt
        self.block_hashes = b""
        self.announced = False
        self.step: StepId | None = None
        self.computing = 0
        self.failures = 0
        self.level = 0
        self.quantum = 0.0
        self.used = 0.0
        self.rank: tuple[float, ...] = ()

    @property
    def new_tokens(self) -> int:
        """Tokens it has still to compute: all at first and after a drop, then one."""
        return self.tokens - self.kv_tokens

    @property
    def in_flight(self) -> bool:
        return self.step is not None

    @property
    def draws(self) -> bool:
        """Whether its step computes all that it has, so that a token can be drawn; not so while its prompt is
        computed in parts.
        """
        return self.kv_tokens + self.computing == self.tokens

    def token_ids_to_compute(self) -> list[int]:
        """Those of its step in flight."""
        if self.new_tokens == 1 and self.output:
            return self.output[-1:]
        return (self.prompt + self.output)[self.kv_tokens : self.kv_tokens + self.computing]

    def hash_blocks(self, block_size: int) -> bytes:
        """Bring `block_hashes` up to date. Without the last token: its KV is not written before another is
        drawn, and however much is reused, one token is left to draw the next from.
        """
        if self.cache_salt is not None:
            tokens = (self.prompt + self.output)[:-1]
            self.block_hashes = block_hashes(tokens, block_size, self.cache_salt, self.block_hashes)
        return self.block_hashes

    def append(self, token: int, logprobs: TokenLogprobs | None) -> None:
        """Its next output token, with log-probabilities if it asks for them."""
        self.output.append(token)
        self.tokens += 1
        if logprobs is not None:
            self._logprobs.append(logprobs)

    def logprobs_from(self, start: int) -> list[TokenLogprobs]:
        """Those of output tokens `start` and later; the gateway has those of tokens that it resubmitted."""
        return self._logprobs[start - self._resubmitted :]

    def history(self) -> TokenHistory | None:
        """What its next draw must know of its tokens; None for most jobs."""
        sampling = self.sampling
        barred = self._barred_now() if self.grammar is None else []
        counted = sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0
        if not (barred or counted or sampling.repetition_penalty != 1.0):
            return None
        output = _packed(self.output)
        seen = self._prompt_seen + output if sampling.repetition_penalty != 1.0 else b""
        return TokenHistory(output if counted else b"", seen, barred)

    def grammar_state(self, grammar_id: int) -> GrammarState:
        """What its next draw must know if it has a grammar."""
        return GrammarState(grammar_id, _packed(self.output), self._barred_now())

    def _barred_now(self) -> list[int]:
        return self.barred if len(self.output) < self.min_tokens else []

    def finish_reason(self) -> FinishReason | None:
        """Why it ends after its last output token, or None if it goes on."""
        if self.output and self.output[-1] in self.stop_token_ids:
            return FinishReason.STOP
        if len(self.output) >= self.max_tokens:
            return FinishReason.LENGTH
        return None


def _packed(tokens: Iterable[int]) -> bytes:
    return array("i", tokens).tobytes()
