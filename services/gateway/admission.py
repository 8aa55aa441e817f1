"""From a validated body to a job. All that can be refused is refused here, before any header is sent."""

import re
import secrets
from collections.abc import Sequence

import msgspec

from services.gateway.response_request import ResponseRequest
from services.gateway.schema import ChatRequest, CompletionRequest, GenerationRequest, Message
from services.gateway.structured.constraint import Constraint, constraint_of
from services.gateway.structured.fields import Tool
from services.gateway.structured.form import Form
from services.gateway.structured.formats import FORMATS, Hermes, ToolFormat, recognise
from services.gateway.structured.turns import native_tools, native_turns, plain_turns
from services.gateway.tokenizer import Tokenizer
from services.gateway.truncation import latest_that_fit
from shared.errors import InvalidRequest
from shared.ids import JobId, new_job_id
from shared.messages import Grammar, Limits, Sampling, Submit

_COMPLETION_TOKENS = 16
"""OpenAI's default length of a completion, tokens."""
_GREEDY_BELOW = 1e-5
"""Below this temperature the division by it overflows while the draw is greedy anyway."""
_SEED_MASK = 2**63 - 1
_MOST_CHOICES = 1024
"""Jobs that one request may start."""
_TOKEN_ID = re.compile("-?[0-9]{1,20}")


class Job(msgspec.Struct, frozen=True):
    """What the scheduler gets (`submit`) and what only the gateway needs to know of a job.

    continues: the answer goes on from the prompt's text instead of starting a text of its own
    echo: text that goes before the answer
    constraint: where `submit.grammar` comes from
    tool_format, functions: how calls are written in the answer, and what may be called
    free_text: what is no call may be any text
    """

    submit: Submit
    stops: list[str]
    continues: bool
    echo: str = ""
    constraint: Constraint | None = None
    tool_format: ToolFormat | None = None
    functions: tuple[str, ...] = ()
    free_text: bool = True

    def after(self, waited: float, request_id: str, choice: int, tenant: str | None = None) -> "Job":
        """The same, that many seconds after the request arrived, as this choice of it; on account of `tenant`
        if there is one.
        """
        tenant = self.submit.tenant if tenant is None else tenant
        submit = msgspec.structs.replace(
            self.submit, waited=waited, tenant=tenant, request_id=request_id, choice=choice
        )
        return msgspec.structs.replace(self, submit=submit)


class Admission:
    """Stateless after construction; tokenising a long prompt takes a while, so call it in a thread.

    model: the name that clients must ask for
    reply_to: the bus instance that receives the tokens
    max_grammar_bytes: largest grammar, as the bus carries it
    """

    def __init__(self, tokenizer: Tokenizer, model: str, reply_to: str, max_grammar_bytes: int) -> None:
        self._tokenizer = tokenizer
        self._model = model
        self._reply_to = reply_to
        self._max_grammar_bytes = max_grammar_bytes
        template = tokenizer.tool_template
        name = recognise(template) if template else None
        self._native_tools = name is not None
        kind = FORMATS[name or "hermes"]
        self._tool_format = kind(tokenizer.special_id(kind.opening) if kind.opening else None)

    def check_model(self, model: str) -> None:
        if model != self._model:
            raise InvalidRequest(
                f"model: {model[:200]!r} is not served here; use {self._model!r}",
                param="model",
                code="model_not_found",
                status=404,
            )

    def chat(self, request: ChatRequest, limits: Limits) -> list[Job]:
        """One job per choice. Raises InvalidRequest."""
        asked = request.max_completion_tokens or request.max_tokens
        return self._answer(request, request.messages, asked, limits)

    def response(self, request: ResponseRequest, limits: Limits) -> list[Job]:
        """The one job of a response. Raises InvalidRequest."""
        messages, tools = request.messages, request.form.tools
        asked = request.max_output_tokens
        if request.truncation == "auto":
            room = limits.max_tokens_total - (asked or 1)
            messages = latest_that_fit(
                messages, lambda part: len(self.conversation(part, tools, "input")) <= room
            )
        return self._answer(request, messages, asked, limits)

    def conversation(self, messages: Sequence[Message], tools: Sequence[Tool], field: str) -> list[int]:
        """Token ids up to where the answer starts. field: what errors name. Raises InvalidRequest."""
        if self._native_tools:
            return self._tokenizer.encode_chat(native_turns(messages), native_tools(tools), field=field)
        return self._tokenizer.encode_chat(plain_turns(messages, tools, Hermes()), field=field)

    def _answer(
        self, request: ChatRequest | ResponseRequest, messages: Sequence[Message], asked: int | None,
        limits: Limits,
    ) -> list[Job]:  # fmt: skip
        """Jobs that go on from a conversation."""
        form = request.form
        prompt = self.conversation(messages, form.tools, request.prompt_field)
        room = self._room(prompt, asked, request.prompt_field, request.length_field, limits)
        jobs = self._jobs(request, self._sampling(request), prompt, asked or room, continues=False)
        constraint = constraint_of(form, self._tool_format, self._max_grammar_bytes)
        return [self._constrained(job, form, constraint) for job in jobs] if constraint else jobs

    def _constrained(self, job: Job, form: Form, constraint: Constraint) -> Job:
        replace = msgspec.structs.replace
        grammar = Grammar(constraint.source, sorted(self._tokenizer.eos_ids), constraint.field)
        return replace(
            job,
            submit=replace(job.submit, grammar=grammar),
            constraint=constraint,
            tool_format=self._tool_format if form.tools else None,
            functions=form.functions,
            free_text=not form.prescribes_text,
        )

    def completion(self, request: CompletionRequest, limits: Limits) -> list[Job]:
        """One job per choice, those of the first prompt first. Raises InvalidRequest."""
        prompts = _prompts(request)
        if len(prompts) * request.choices > _MOST_CHOICES:
            raise InvalidRequest(
                f"prompt: {len(prompts)} prompts and n = {request.choices} make "
                f"{len(prompts) * request.choices} answers; at most {_MOST_CHOICES} are made per request",
                param="prompt",
            )
        sampling = self._sampling(request)
        jobs: list[Job] = []
        for source, prompt in prompts:
            ids = self._prompt_ids(prompt, source)
            asked = request.max_tokens
            room = self._room(ids, asked, source, "max_tokens", limits)
            length = asked or min(_COMPLETION_TOKENS, room)
            echo = self._echo(prompt) if request.echo else ""
            jobs += self._jobs(request, sampling, ids, length, continues=True, echo=echo)
        return jobs

    def _prompt_ids(self, prompt: str | list[int], source: str) -> list[int]:
        if not prompt:
            raise InvalidRequest(f"{source}: it is empty; send at least one token", param="prompt")
        if isinstance(prompt, str):
            return self._tokenizer.encode(prompt)
        self.check_ids(prompt, source)
        return prompt

    def _echo(self, prompt: str | list[int]) -> str:
        return prompt if isinstance(prompt, str) else self._tokenizer.decode(prompt)

    def check_ids(self, ids: list[int], param: str) -> None:
        """Raises InvalidRequest for one outside of the vocabulary."""
        size = self._tokenizer.vocab_size
        if ids and (min(ids) < 0 or max(ids) >= size):
            at, bad = next((i, token) for i, token in enumerate(ids) if not 0 <= token < size)
            raise InvalidRequest(
                f"{param}[{at}]: token id {_short(bad)} is outside of the vocabulary (0 to {size - 1})",
                param=param.partition("[")[0],
            )

    def _room(self, prompt: list[int], asked: int | None, source: str, name: str, limits: Limits) -> int:
        """Output tokens that fit behind the prompt; refuses a prompt or a maximum that does not fit."""
        param = source.partition("[")[0]
        if not prompt:
            raise InvalidRequest(f"{source}: no tokens are left after tokenising", param=param)
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
                param=param,
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

    def _jobs(
        self,
        request: GenerationRequest,
        sampling: Sampling,
        prompt: list[int],
        max_tokens: int,
        *,
        continues: bool,
        echo: str = "",
    ) -> list[Job]:
        """The `n` answers to one prompt."""
        named = request.stop_token_ids or []
        self.check_ids(named, "stop_token_ids")
        ends = set(named) if request.ignore_eos else self._tokenizer.eos_ids.union(named)
        min_tokens = request.min_tokens or 0
        if min_tokens > max_tokens:
            raise InvalidRequest(
                f"min_tokens: {_short(min_tokens)} is more than the longest answer, {max_tokens} tokens "
                f"({request.length_field})",
                param="min_tokens",
            )
        barred = sorted(self._tokenizer.eos_ids.union(named)) if min_tokens else []
        submit = Submit(
            job_id=JobId(0),  # each choice has its own
            reply_to=self._reply_to,
            prompt=prompt,
            max_tokens=max_tokens,
            sampling=sampling,
            stop_token_ids=sorted(ends),
            priority=request.priority or 0,
            tenant=request.user or "",
            min_tokens=min_tokens,
            barred_token_ids=barred,
            cache_salt=request.cache_salt or "",
        )
        replace = msgspec.structs.replace
        jobs: list[Job] = []
        for choice in range(request.choices):
            seed = secrets.randbits(63) if request.seed is None else (request.seed + choice) & _SEED_MASK
            drawn = replace(sampling, seed=seed)
            own = replace(submit, job_id=new_job_id(), sampling=drawn)
            jobs.append(Job(own, request.stop_strings, continues, echo))
        return jobs

    def _sampling(self, request: GenerationRequest) -> Sampling:
        """All but the seed, which differs between the choices."""
        temperature = 1.0 if request.temperature is None else request.temperature
        top_k = request.top_k or 0
        penalty = request.repetition_penalty
        return Sampling(
            temperature=0.0 if temperature < _GREEDY_BELOW else temperature,
            top_p=1.0 if request.top_p is None else request.top_p,
            top_k=top_k if 0 < top_k < self._tokenizer.vocab_size else 0,
            min_p=request.min_p or 0.0,
            presence_penalty=request.presence_penalty or 0.0,
            frequency_penalty=request.frequency_penalty or 0.0,
            repetition_penalty=1.0 if penalty is None else penalty,
            logit_bias=self._logit_bias(request),
            logprobs=request.top,
        )

    def _logit_bias(self, request: GenerationRequest) -> dict[int, float]:
        named = request.logit_bias or {}
        for key in named:
            if not _TOKEN_ID.fullmatch(key):
                raise InvalidRequest(f"logit_bias: {key[:100]!r} is no token id", param="logit_bias")
        ids = [int(key) for key in named]
        self.check_ids(ids, "logit_bias")
        return {token: value for token, value in zip(ids, named.values(), strict=True) if value}


def _prompts(request: CompletionRequest) -> list[tuple[str, str | list[int]]]:
    """Each prompt of the request with its path in the body."""
    prompt = request.prompt
    if not isinstance(prompt, list) or not prompt or isinstance(prompt[0], int):
        return [("prompt", prompt)]  # pyright: ignore[reportReturnType]  # the lists of lists are gone
    return [(f"prompt[{i}]", each) for i, each in enumerate(prompt)]  # pyright: ignore[reportReturnType]


def _short(number: int) -> str:
    return str(number) if abs(number) < 10**20 else "of more than 20 digits"
