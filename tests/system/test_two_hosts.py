"""Stages on two hosts, joined by a link that can be cut."""

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.system.reference import Reference
from tests.system.two_hosts import TwoHosts, missing_privilege

pytestmark = pytest.mark.system

MODEL = "SmolLM2-135M-Instruct"
CUT_S = 3.0
TOKENS = 48
MESSAGES = [{"role": "user", "content": "Tell me a story about a river and an orchard in winter."}]


@pytest.fixture(scope="module")
def hosts() -> Iterator[TwoHosts]:
    reason = missing_privilege()
    if reason is not None:
        pytest.skip(reason)
    args = {
        "kv": {"device_blocks": 64, "host_blocks": 64},
        "stage": {"inline_bytes_between_hosts": 4096, "chunk_bytes": 4096},  # one decode; a prompt is more
        "profiler": {"cache": False, "prefill_tokens": [16, 48], "decode_batches": [1], "decode_tokens": 3},
    }
    with TwoHosts(args) as running:
        yield running


@pytest.fixture(scope="module")
def expected(reference: Reference) -> str:
    prompt = reference.tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    return reference.tokenizer.decode(reference.generate(prompt, TOKENS), skip_special_tokens=True)


def stream(hosts: TwoHosts) -> Iterator[str]:
    """Pieces of the answer. Raises AssertionError with the text of an error event."""
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": MESSAGES,
        "temperature": 0,
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "stream": True,
    }
    with httpx.stream("POST", f"{hosts.url}/v1/chat/completions", json=body, timeout=60) as answer:
        assert answer.status_code == 200, hosts.logs()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line.removeprefix("data: "))
                assert "error" not in chunk, chunk
                yield chunk["choices"][0]["delta"].get("content") or ""


def sent_bytes(hosts: TwoHosts) -> dict[str, float]:
    """Of stage 0, by way."""
    found: dict[str, float] = {}
    for line in httpx.get(f"{hosts.url}/metrics").text.splitlines():
        if line.startswith("skipjoin_activation_sent_bytes_total"):
            labels, value = line.rsplit(" ", 1)
            found[labels.split('way="')[1].split('"')[0]] = float(value)
    return found


def test_a_chat_streams_across_the_link(hosts: TwoHosts, expected: str) -> None:
    assert "".join(stream(hosts)) == expected
    assert sorted(sent_bytes(hosts)) == ["chunked", "inline"], "the second host sees no memory of the first"


def test_a_stream_outlives_a_cut_of_the_link(hosts: TwoHosts, expected: str) -> None:
    pieces: list[str] = []
    for piece in stream(hosts):
        pieces.append(piece)
        if len(pieces) == 8:
            hosts.cut()
            time.sleep(CUT_S)  # nothing is waited for: this is how long the link is gone
            hosts.mend()
    assert "".join(pieces) == expected
