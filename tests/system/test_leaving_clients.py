"""Five hundred clients that leave at random points cost nothing afterwards."""

import asyncio
import random
from typing import Any

import httpx

from tests.application import Application
from tests.system.reference import make_prompt

CLIENTS, AT_ONCE = 500, 40
TOKENS = 3
PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/responses")


def body_of(model: str, path: str, index: int, draw: random.Random) -> dict[str, Any]:
    prompt = f"Story {index}."
    stream = draw.random() < 0.7
    match path:
        case "/v1/completions":
            own: dict[str, Any] = {"prompt": prompt, "n": draw.choice([1, 1, 2]), "ignore_eos": True}
        case "/v1/chat/completions":
            own = {"messages": [{"role": "user", "content": prompt}], "logprobs": draw.random() < 0.3}
        case _:
            return {"model": model, "input": prompt, "max_output_tokens": TOKENS, "stream": stream}
    return {"model": model, "max_tokens": TOKENS, "stream": stream, **own}


class Client:
    """Asks, and leaves at a point drawn at random. left: where; seen: status of an answer that had begun"""

    def __init__(self, app: Application, index: int) -> None:
        self._app = app
        self._draw = random.Random(index)
        self._path = self._draw.choice(PATHS)
        self._body = body_of(app.config.model.served_name, self._path, index, self._draw)
        self.left = self._draw.choice(["at once", "before the headers", "in the body", "at the end"])
        self.seen: int | None = None

    async def ask(self, http: httpx.AsyncClient, limit: asyncio.Semaphore) -> None:
        patience: float | None = None
        if self.left == "before the headers":
            patience = self._draw.uniform(0, 0.4)
        async with limit:
            asking = asyncio.create_task(self._ask(http))
            try:
                if self.left == "at once":
                    for _ in range(self._draw.randint(0, 30)):  # turns of the loop: connecting, sending
                        await asyncio.sleep(0)
                else:
                    await asyncio.wait({asking}, timeout=patience)
            finally:
                asking.cancel()
                await asyncio.wait({asking})
            if not asking.cancelled():
                asking.result()

    async def _ask(self, http: httpx.AsyncClient) -> None:
        lines = self._draw.randint(0, 8) if self.left == "in the body" else 10_000
        async with http.stream("POST", self._path, json=self._body) as answer:
            self.seen = answer.status_code
            async for _ in answer.aiter_lines():
                lines -= 1
                if lines < 0:
                    return  # closes the connection: the answer was not read to its end


async def test_five_hundred_clients_that_leave() -> None:
    """Nothing is held for them, no gauge counts them, and the server goes on to serve."""
    async with (
        Application(
            kv={"device_blocks": 48, "host_blocks": 64, "prefix_reuse": False},
            scheduler={"max_batch_size": 16},
        ) as app,
        asyncio.timeout(300),
        httpx.AsyncClient(base_url=app.url, timeout=120, limits=httpx.Limits(max_connections=None)) as http,
    ):
        clients = [Client(app, index) for index in range(CLIENTS)]
        limit = asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(client.ask(http, limit) for client in clients))
        metrics = await app.settled()
        assert metrics['skipjoin_kv_blocks{state="free",tier="device"}'] == 48
        assert metrics['skipjoin_kv_blocks{state="free",tier="host"}'] == 64
        assert metrics["skipjoin_open_requests"] == 0
        assert metrics["skipjoin_kv_integrity_violations_total"] == 0
        assert not any(value for name, value in metrics.items() if name.startswith("skipjoin_jobs{"))
        assert len(app.gateway._engine._jobs) == 0
        report = (await app.http.get("/v1/requests")).json()
        assert report["data"] == []
        assert {client.seen for client in clients} == {None, 200}
        for left in ("before the headers", "in the body"):  # of each kind, some had their answer begun
            begun = [client.seen == 200 for client in clients if client.left == left]
            assert any(begun), left
        aborted = sum(
            value
            for name, value in metrics.items()
            if name.startswith("skipjoin_requests_total") and 'outcome="abort"' in name
        )
        assert aborted > CLIENTS / 10
        answer = await app.http.post("/v1/completions", json=app.completion(make_prompt(1), 3))
        assert answer.status_code == 200
