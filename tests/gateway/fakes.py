"""Stand-ins for what surrounds the gateway: a model folder, an engine that says what it is told, a bus."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from opentelemetry.trace import NoOpTracer, Tracer
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from services.gateway.api import create_app
from services.gateway.keys import Keyring
from services.gateway.open_requests import OpenRequests
from services.gateway.pipeline_view import PipelineView
from services.gateway.pipelines import PipelineState
from services.gateway.pipelines_api import Scaler
from services.gateway.timelines import KeptTimelines
from services.gateway.tokenizer import Tokenizer
from shared.bus import Delivery
from shared.config import Config, GatewayConfig, ModelConfig
from shared.costmodel import GUESS
from shared.errors import NoResponder
from shared.ids import Epoch, JobId
from shared.messages import (
    AskRequests,
    Body,
    Envelope,
    Explanation,
    FinishReason,
    JobTokens,
    Limits,
    Requests,
    Submit,
    Timeline,
    Timelines,
    TokenLogprobs,
)
from shared.metrics import Registry
from shared.subjects import Subjects

MODEL = "tiny"
BOS, EOS = "<|bos|>", "<|end|>"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('system must come first') }}{% endif %}"
    "{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "hello world, hello there",
    "中文 and emoji 🎉 mixed",
]


def byte_level_backend() -> Backend:
    """Like GPT-2, Llama 3, Qwen: characters outside of the small corpus are split into bytes."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens([AddedToken("<plain added>", special=False)])
    backend.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, backend.token_to_id(BOS))]
    )
    return backend


def byte_fallback_backend() -> Backend:
    """Like Llama 2, Mistral, Gemma: pieces with a mark for spaces, and a token for every byte."""
    pieces = ["<unk>", BOS, EOS, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdehlorw", "é"]
    backend = Backend(
        models.BPE(
            vocab={p: i for i, p in enumerate(pieces)}, merges=[], unk_token="<unk>", byte_fallback=True
        )
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    backend.add_special_tokens([BOS, EOS])
    return backend


def write_model_folder(folder: Path, *, template: str | None = TEMPLATE, **config: Any) -> Path:
    backend = byte_level_backend()
    eos = backend.token_to_id(EOS)
    backend.save(str(folder / "tokenizer.json"))
    # The embedding matrix has padding rows, as many models' have.
    sizes = {"vocab_size": backend.get_vocab_size() + 7, "eos_token_id": eos} | config
    (folder / "config.json").write_text(json.dumps(sizes))
    settings = {"bos_token": BOS, "eos_token": {"content": EOS, "special": True}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def logprobs_of(token: int, top: int) -> TokenLogprobs:
    """What FakeEngine reports: told by the token, which is its second choice."""
    ids = [token + 1, token, *range(2, 2 + top)][:top]
    return TokenLogprobs(-token / 8, ids, [-token / 8 + 1 - place for place in range(len(ids))])


Step = list[int] | Exception | asyncio.Event


class FakeEngine:
    """Says `script`: lists of tokens (one delivery each), events to wait for, or an error to fail with.

    scripts: instead, one for each submission in their order
    """

    instance = "gateway-under-test"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.limits: Limits | None = Limits(256, 512)
        self.ready: tuple[bool, str] = (True, "")
        self.cost = GUESS
        self.pipelines = [PipelineState(0, "", 0)]
        self.draining = False
        self.views: Callable[[], list[PipelineView]] = lambda: [PipelineView(0, "")]
        self.looks = 0
        self.refusal: Exception | None = None
        self.refused_from = 0
        self.script: list[Step] = [tokenizer.encode("hello there")[1:]]
        self.scripts: list[list[Step]] = []
        self.finish = FinishReason.LENGTH
        self.submitted: list[Submit] = []
        self.traces: list[str | None] = []
        self.aborted: list[int] = []
        self.explanations: dict[int, Explanation] = {}
        self.parts: list[Timelines] = []
        self.elsewhere: list[OpenRequests] = []
        self.waiting = asyncio.Event()
        self.abort_seen = asyncio.Event()

    def say(self, text: str, *, at_once: int = 1, stop_token: int | None = None) -> None:
        tokens = self._tokenizer.encode(text)[1:]
        if stop_token is not None:
            tokens.append(stop_token)
            self.finish = FinishReason.STOP
        self.script = [tokens[i : i + at_once] for i in range(0, len(tokens), at_once)]

    async def generate(self, submit: Submit, trace: str | None) -> AsyncGenerator[JobTokens]:
        number = len(self.submitted)
        self.submitted.append(submit)
        script = self.scripts[number] if self.scripts else self.script
        self.traces.append(trace)
        if self.refusal is not None and number >= self.refused_from:
            raise self.refusal
        ended, position = False, 0
        try:
            yield JobTokens(submit.job_id, 0, [])
            for i, step in enumerate(script):
                if isinstance(step, Exception):
                    ended = True
                    raise step
                if isinstance(step, asyncio.Event):
                    self.waiting.set()
                    await step.wait()
                    continue
                ended = i == len(script) - 1
                finish = self.finish if ended else None
                top = submit.sampling.logprobs
                scored = [] if top is None else [logprobs_of(token, top) for token in step]
                yield JobTokens(submit.job_id, position, step, finish, logprobs=scored)
                position += len(step)
        finally:
            if not ended:
                self.aborted.append(submit.job_id)
                self.abort_seen.set()

    async def explain(self, job_id: JobId) -> Explanation:
        return self.explanations.get(job_id, Explanation(job_id, found=False))

    async def requests_elsewhere(self, name: str | None) -> list[Requests]:
        return [each.tell(AskRequests(name)) for each in self.elsewhere]

    async def abort(self, job_id: JobId) -> None:
        self.aborted.append(job_id)

    async def look(self) -> list[PipelineView]:
        self.looks += 1
        return self.views()

    async def timelines(self, job_ids: Sequence[JobId]) -> list[Timeline]:
        return [each for part in self.parts for each in part.timelines if each.job_id in job_ids]

    async def window(self, seconds: float) -> list[Timelines]:
        return self.parts

    async def metrics(self) -> str:
        return "skipjoin_up 1\n"


def make_app(
    engine: FakeEngine,
    tokenizer: Tokenizer,
    *,
    registry: Registry | None = None,
    tracer: Tracer | None = None,
    max_body_bytes: int = 20_000,
    keyring: Keyring | None = None,
    scaler: Scaler | None = None,
    timelines: KeptTimelines | None = None,
    **gateway: Any,
) -> FastAPI:
    """gateway: keys of that section of the configuration"""
    config = Config(
        model=ModelConfig(path="/models/x", name=MODEL),
        gateway=GatewayConfig(max_body_bytes=max_body_bytes, **gateway),
    )
    return create_app(
        engine, tokenizer, config, registry or Registry(), tracer or NoOpTracer(), keyring, scaler, timelines
    )


def client_of(app: FastAPI) -> httpx.AsyncClient:
    # As a real server does, answer a request although the application failed.
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://gateway")


def events_of(text: str) -> list[Any]:
    """The JSON of every event of a stream; `[DONE]` stays a string."""
    blocks = text.split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") for block in blocks)
    bodies = [block.removeprefix("data: ") for block in blocks]
    return [body if body == "[DONE]" else json.loads(body) for body in bodies]


class FakeSubscription:
    def __init__(self) -> None:
        self.queue: asyncio.Queue[Delivery | None] = asyncio.Queue()

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self

    async def __anext__(self) -> Delivery:
        delivery = await self.queue.get()
        assert delivery is not None
        return delivery

    async def next_within(self, seconds: float) -> Delivery | None:
        """Put None to let the time run out."""
        return await self.queue.get()


Responder = Callable[[Body], Body | Exception]


class FakeBus:
    """Requests are answered by `responders`; what the scheduler publishes is put in with `send`."""

    def __init__(self) -> None:
        self.instance = "gateway-1"
        self.subjects = Subjects("test")
        self.epoch = Epoch(0)
        self.scheduler: tuple[str, Epoch] = ("scheduler-1", Epoch(10))
        self.subscriptions: dict[str, FakeSubscription] = {}
        self.responders: dict[str, Responder] = {}
        self.requests: list[tuple[str, Body]] = []
        self.published: list[tuple[str, Body]] = []
        self.request_seen = asyncio.Event()
        self.published_one = asyncio.Event()

    async def subscribe(self, subject: str, *, depth: int = 1024) -> FakeSubscription:
        self.subscriptions[subject] = FakeSubscription()
        return self.subscriptions[subject]

    async def publish(self, subject: str, body: Body, *, trace: str | None = None) -> None:
        self.published.append((subject, body))
        self.published_one.set()

    async def request(
        self, subject: str, body: Body, *, timeout: float, trace: str | None = None
    ) -> Delivery:
        self.requests.append((subject, body))
        self.request_seen.set()
        responder = self.responders.get(subject)
        if responder is None:
            raise NoResponder(f"nobody serves {subject}")
        answer = responder(body)
        if isinstance(answer, Exception):
            raise answer
        return self.delivery(answer)

    def delivery(self, body: Body, *, lost: int = 0, by: tuple[str, Epoch] | None = None) -> Delivery:
        source, epoch = by or self.scheduler
        return Delivery(Envelope(source, 1, epoch, body), None, "", lost)

    def send(self, subject: str, body: Body, *, lost: int = 0, by: tuple[str, Epoch] | None = None) -> None:
        self.subscriptions[subject].queue.put_nowait(self.delivery(body, lost=lost, by=by))
