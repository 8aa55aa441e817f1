"""Several pipelines through Ray Serve: one is killed, others come and go while a stream runs."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from loadgen.served import ServedApplication
from tests.system.reference import Reference, make_prompt
from tests.system.test_pipelines import cached_tokens

pytestmark = pytest.mark.system
MODEL = "SmolLM2-135M-Instruct"
SMALL = ("kv.device_blocks=64", "kv.host_blocks=64", "gateway.drain_s=60")
_T = TypeVar("_T")


def until(found: Callable[[], _T | None], seconds: float = 180.0) -> _T:
    """What `found` finds at last: these processes can be asked, not awaited."""
    deadline = time.monotonic() + seconds
    while (result := found()) is None:
        assert time.monotonic() < deadline, f"{found} found nothing"
        time.sleep(0.2)
    return result


class Client:
    def __init__(self, url: str) -> None:
        self.url = url
        self._http = httpx.Client(base_url=url, timeout=180)

    def pipelines(self) -> list[dict[str, Any]]:
        return self._http.get("/v1/pipelines").json()["data"]

    def serving(self, count: int) -> bool | None:
        return True if sum(each["serving"] for each in self.pipelines()) == count else None

    def routed(self) -> dict[str, float]:
        """Jobs handed to each pipeline so far."""
        page = self._http.get("/metrics")
        assert page.status_code == 200, page.text
        counts = re.findall(r'skipjoin_routed_jobs_total{gateway="\w+",to="(\d+)"} (\S+)', page.text)
        assert counts, page.text
        return {pipeline: float(count) for pipeline, count in counts}

    def complete(self, prompt: list[int] | str, max_tokens: int) -> dict[str, Any]:
        answer = self._http.post("/v1/completions", json=body(prompt, max_tokens))
        assert answer.status_code == 200, answer.text
        return answer.json()


def body(prompt: list[int] | str, max_tokens: int) -> dict[str, Any]:
    return {
        "model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
    }  # fmt: skip


class Stream:
    """A streamed completion, whose text must be what transformers says."""

    def __init__(self, url: str, prompt: str, max_tokens: int) -> None:
        self.prompt, self.max_tokens = prompt, max_tokens
        self._request = httpx.stream(
            "POST", f"{url}/v1/completions", json=body(prompt, max_tokens) | {"stream": True}, timeout=180
        )
        self._lines = self._request.__enter__().iter_lines()
        self._text = ""

    def read(self, chunks: int | None = None) -> None:
        """So many more events; None: all."""
        for line in self._lines:
            if not line.startswith("data: {"):
                continue
            event = httpx.Response(200, text=line.removeprefix("data: ")).json()
            assert "error" not in event, event
            self._text += event["choices"][0]["text"]
            if chunks is not None and (chunks := chunks - 1) == 0:
                return

    def finish(self, reference: Reference) -> None:
        self.read()
        self._request.__exit__(None, None, None)
        expected = reference.generate(self.prompt, self.max_tokens)
        assert self._text == reference.tokenizer.decode(expected)


def scale(replicas: int, url: str) -> str:
    command = [str(Path(sys.executable).with_name("skipjoin")), "scale", str(replicas), "--url", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def two() -> Iterator[ServedApplication]:
    with ServedApplication(*SMALL, "parallel.replicas=2") as application:
        yield application


def deployment(service: str, pipeline: int) -> str:
    return f"{service}-p{pipeline}" if pipeline else service


def test_the_second_turn_of_a_conversation_reaches_the_same_pipeline(
    two: ServedApplication, reference: Reference
) -> None:
    client = Client(two.url)
    until(lambda: client.serving(2))
    prompt = reference.tokenizer.encode(make_prompt(11))
    for _ in range(3):  # the pipelines take turns, conversations do not
        answer = client.complete(prompt, 20)
        prompt += reference.tokenizer.encode(answer["choices"][0]["text"] + " And then?")
        client.complete("Something else.", 4)
    turn = client.complete(prompt, 20)
    assert cached_tokens(turn) > 0


@pytest.mark.parametrize("service", ["scheduler", "stage-0"])
def test_a_stream_survives_the_death_of_its_pipeline(
    two: ServedApplication, reference: Reference, service: str
) -> None:
    client = Client(two.url)
    until(lambda: client.serving(2))
    before = client.routed()
    stream = Stream(two.url, make_prompt(7), 60)
    stream.read(3)
    (pipeline,) = [each for each, count in client.routed().items() if count > before.get(each, 0)]
    (pid,) = two.pids(deployment(service, int(pipeline)))
    os.kill(pid, signal.SIGKILL)
    stream.finish(reference)
    other = "1" if pipeline == "0" else "0"
    assert client.routed().get(other, 0) == before.get(other, 0) + 1
    assert httpx.get(f"{two.url}/ready").status_code == 200


def test_pipelines_come_and_go_while_a_stream_runs(reference: Reference) -> None:
    with ServedApplication(*SMALL) as served:
        client = Client(served.url)
        first = Stream(served.url, make_prompt(3), 400)
        first.read(3)
        scale(2, served.url)
        second = Stream(served.url, make_prompt(8), 300)
        second.read(3)
        assert client.routed() == {"0": 1, "1": 1}, "the new one had less to do"
        told = scale(1, served.url)
        assert "shutting down" in told
        assert client.routed() == {"0": 2, "1": 1}, "its unfinished job has moved"
        second.finish(reference)
        first.finish(reference)
        assert served.stop() == 0, "".join(served.output)
        assert served.survivors() == []
