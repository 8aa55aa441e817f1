"""However activations go from stage to stage, and whatever is lost on the way: the tokens are those of
Hugging Face.
"""

import asyncio
import itertools
from typing import Any

import pytest
from torch import Tensor

from services.stage.service import StageService
from services.stage.transport import receiver
from shared.bus import Delivery
from tests.application import Application
from tests.system.reference import Reference, make_prompt

WAYS = ["inline", "shm", "chunked", "distributed"]
PROMPTS = [make_prompt(index) for index in range(5)]
TOKENS = 10


async def answers(app: Application) -> list[str]:
    """The texts of a few requests at once."""

    async def complete(prompt: str) -> str:
        body = app.completion(prompt, TOKENS, temperature=0)
        answer = await app.http.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["text"]

    return list(await asyncio.gather(*map(complete, PROMPTS)))


def assert_texts(reference: Reference, texts: list[str]) -> None:
    for prompt, text in zip(PROMPTS, texts, strict=True):
        assert text == reference.tokenizer.decode(reference.generate(prompt, TOKENS))


def sent_bytes(metrics: dict[str, float], stage: int) -> dict[str, float]:
    """By way, in alphabetical order of the ways used."""
    name = "skipjoin_activation_sent_bytes_total"
    found = {way: metrics.get(f'{name}{{stage="{stage}",way="{way}"}}', 0.0) for way in WAYS}
    return {way: size for way, size in found.items() if size}


@pytest.mark.parametrize("way", WAYS)
async def test_forced_way_over_three_stages(reference: Reference, way: str) -> None:
    """With swapping, and pieces so small that a decode is several."""
    stage = {"transport": way, "chunk_bytes": 1024, "window_chunks": 3}
    async with (
        Application(
            stage=stage,
            parallel={"pipeline_stages": 3},
            kv={"device_blocks": 24, "host_blocks": 64},
        ) as app,
        asyncio.timeout(120),
    ):
        await asyncio.to_thread(assert_texts, reference, await answers(app))
        metrics = await app.settled()
    for sender in (0, 1):
        assert list(sent_bytes(metrics, sender)) == [way]
        received = f'skipjoin_activation_received_bytes_total{{stage="{sender + 1}",way="{way}"}}'
        assert metrics[received] == sent_bytes(metrics, sender)[way]
    assert not [name for name in metrics if name.startswith("skipjoin_failed_steps") and metrics[name]]


async def test_auto_between_stages_that_share_memory(reference: Reference) -> None:
    async with (
        Application(stage={"inline_bytes": 20_000}, parallel={"pipeline_stages": 2}) as app,
        asyncio.timeout(120),
    ):
        await asyncio.to_thread(assert_texts, reference, await answers(app))
        assert sorted(sent_bytes(await app.settled(), 0)) == ["inline", "shm"]


@pytest.mark.parametrize("between_hosts", ["chunked", "distributed"])
async def test_auto_between_stages_that_share_none(
    reference: Reference, between_hosts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found out by looking, not by comparing names: here the file is gone before the next stage looks."""
    read = receiver.SharedMemory.read

    def elsewhere(self: Any, segment: str, into: Tensor) -> None:
        (self.folder / segment).unlink(missing_ok=True)
        read(self, segment, into)

    monkeypatch.setattr(receiver.SharedMemory, "read", elsewhere)
    stage = {"inline_bytes_between_hosts": 20_000, "chunk_bytes": 20_000, "between_hosts": between_hosts}
    async with Application(stage=stage, parallel={"pipeline_stages": 2}) as app, asyncio.timeout(120):
        await asyncio.to_thread(assert_texts, reference, await answers(app))
        assert sorted(sent_bytes(await app.settled(), 0)) == sorted([between_hosts, "inline"])


async def test_a_lost_piece_costs_a_recomputation(
    reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = receiver.Receiver._note
    to_lose: list[int] = []
    seen = itertools.count()

    async def lossy(self: receiver.Receiver, delivery: Delivery) -> None:
        if to_lose and next(seen) == to_lose[0]:
            del to_lose[0]
        else:
            await note(self, delivery)

    monkeypatch.setattr(receiver.Receiver, "_note", lossy)
    stage = {"transport": "chunked", "chunk_bytes": 4096, "transfer_timeout_s": 0.5}
    async with Application(stage=stage, parallel={"pipeline_stages": 2}) as app, asyncio.timeout(120):
        to_lose += [3, 30]
        await asyncio.to_thread(assert_texts, reference, await answers(app))
        metrics = await app.settled()
    assert not to_lose
    assert metrics['skipjoin_failed_steps_total{stage="1"}'] == 2
    assert metrics["skipjoin_kv_integrity_violations_total"] == 0


@pytest.mark.parametrize("way", ["auto", "chunked", "distributed"])
@pytest.mark.parametrize("replaced", [0, 1])
async def test_a_restarted_neighbour_is_met_anew(reference: Reference, way: str, replaced: int) -> None:
    stage = {"transport": way, "inline_bytes": 1024, "chunk_bytes": 1024}
    async with Application(stage=stage, parallel={"pipeline_stages": 2}) as app, asyncio.timeout(120):
        running, pieces = asyncio.Event(), list[str]()

        async def stream() -> None:
            async for chunk in app.chunks(app.completion(PROMPTS[0], TOKENS * 3, temperature=0)):
                pieces.append(chunk["choices"][0]["text"])
                if len(pieces) == 4:
                    running.set()

        streaming = asyncio.create_task(stream())
        await running.wait()
        await app.stages[replaced].stop()
        app.stages[replaced] = StageService(app.config, replaced)
        await app.stages[replaced].start()
        await streaming
        expected = await asyncio.to_thread(reference.generate, PROMPTS[0], TOKENS * 3)
        assert "".join(pieces) == reference.tokenizer.decode(expected)
        await app.settled()
