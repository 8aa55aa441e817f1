"""From a validated body to a job. All that can be refused is refused here, before any header is sent."""

import secrets

import msgspec

from services.gateway.schema import ChatRequest, CompletionRequest, GenerationRequest
from services.gateway.tokenizer import Tokenizer
from shared.errors import InvalidRequest
from shared.ids import new_job_id
from shared.messages import Limits, Sampling, Submit

_COMPLETION_TOKENS = 16
"""OpenAI's default length of a completion, tokens."""
_GREEDY_BELOW = 1e-5
"""Below this temperature the division by it overflows while the draw is greedy anyway."""
_SEED_MASK = 2**63 - 1


class Job(msgspec.Struct, frozen=True):
    """What the scheduler gets (`submit`) and what only the gateway needs to know of a job.

    continues: the answer goes on from the prompt's text instead of starting a text of its own
    """

    submit: Submit
    stops: list[str]
    continues: bool


class Admission:
    """Stateless after construction; tokenising a long prompt takes a while, so call it in a thread.

    model: the name that clients must ask for
    reply_to: the bus instance that receives the tokens
    """

    def __init__(self, tokenizer: Tokenizer, model: str, reply_to: str) -> None:
        self._tokenizer = tokenizer
        self._model = model
        self._reply_to = reply_to

    def check_model(self, model: str) -> None:
        if model != self._model:
            raise InvalidRequest(
                f"model: {model[:200]!r} is not served here; use {self._model!r}",
                param="model",
                code="model_not_found",
                status=404,
            )

    def chat(self, request: ChatRequest, limits: Limits) -> Job:
        """Raises InvalidRequest."""
        roles = {"developer": "system"}
        prompt = self._tokenizer.encode_chat(
            [{"role": roles.get(m.role, m.role), "content": m.text} for m in request.messages]
        )
        name = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
        asked = request.max_completion_tokens or request.max_tokens
        room = self._room(prompt, asked, "messages", name, limits)
        return self._job(request, prompt, asked or room, continues=False)

    def completion(self, request: CompletionRequest, limits: Limits) -> Job:
        """Raises InvalidRequest."""
        prompt = self._prompt_ids(request)
        asked = request.max_tokens
        room = self._room(prompt, asked, "prompt", "max_tokens", limits)
        return self._job(request, prompt, asked or min(_COMPLETION_TOKENS, room), continues=True)

    def _prompt_ids(self, request: CompletionRequest) -> list[int]:
        prompt = request.prompt
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            if len(prompt) > 1:
                raise InvalidRequest(
                    f"prompt: {len(prompt)} prompts in one request are not supported yet; send one",
                    param="prompt",
                    code="not_supported",
                )
            prompt = prompt[0]
        if not prompt:
            raise InvalidRequest("prompt: it is empty; send at least one token", param="prompt")
        if isinstance(prompt, str):
            return self._tokenizer.encode(prompt)
        ids: list[int] = prompt  # pyright: ignore[reportAssignmentType]  # the list of lists is gone
        self._check_ids(ids, "prompt")
        return ids

    def _check_ids(self, ids: list[int], param: str) -> None:
        size = self._tokenizer.vocab_size
        if ids and (min(ids) < 0 or max(ids) >= size):
            at, bad = next((i, token) for i, token in enumerate(ids) if not 0 <= token < size)
            raise InvalidRequest(
                f"{param}[{at}]: token id {_short(bad)} is outside of the vocabulary (0 to {size - 1})",
                param=param,
            )

    def _room(self, prompt: list[int], asked: int | None, source: str, name: str, limits: Limits) -> int:
        """Output tokens that fit behind the prompt; refuses a prompt or a maximum that does not fit."""
        if not prompt:
            raise InvalidRequest(f"{source}: no tokens are left after tokenising", param=source)
        limit = limits.max_tokens_total
        what = (
            f"the model's context of {limit} tokens (max_model_len)"
            if limits.max_model_len <= limits.capacity
            else f"the KV cache, which holds {limit} tokens of one request"
        )
        room = limit - len(prompt)
        if room < 1:
            raise InvalidRequest(
                f"{source}: {len(prompt)} tokens and at least one of the answer exceed {what}; "
                f"shorten it to {limit - 1} tokens",
                param=source,
                code="context_length_exceeded",
            )
        if asked is not None and asked > room:
            raise InvalidRequest(
                f"{name}: {len(prompt)} prompt tokens and {_short(asked)} of the answer exceed {what}; "
                f"ask for at most {room}",
                param=name,
                code="context_length_exceeded",
            )
        return room

    def _job(self, request: GenerationRequest, prompt: list[int], max_tokens: int, *, continues: bool) -> Job:
        named = request.stop_token_ids or []
        self._check_ids(named, "stop_token_ids")
        ends = set(named) if request.ignore_eos else self._tokenizer.eos_ids.union(named)
        return Job(
            Submit(
                job_id=new_job_id(),
                reply_to=self._reply_to,
                prompt=prompt,
                max_tokens=max_tokens,
                sampling=self._sampling(request),
                stop_token_ids=sorted(ends),
                priority=request.priority or 0,
                tenant=request.user or "",
            ),
            request.stop_strings,
            continues,
        )

    def _sampling(self, request: GenerationRequest) -> Sampling:
        temperature = 1.0 if request.temperature is None else request.temperature
        top_k = request.top_k or 0
        return Sampling(
            temperature=0.0 if temperature < _GREEDY_BELOW else temperature,
            top_p=1.0 if request.top_p is None else request.top_p,
            top_k=top_k if 0 < top_k < self._tokenizer.vocab_size else 0,
            seed=secrets.randbits(63) if request.seed is None else request.seed & _SEED_MASK,
        )


def _short(number: int) -> str:
    return str(number) if abs(number) < 10**20 else "of more than 20 digits"
