"""Many clients, little memory, some of them leave: nobody reads what another wrote."""

import asyncio
import random
from contextlib import aclosing
from dataclasses import dataclass, field

from tests.application import Application
from tests.system.reference import Reference
from tests.system.test_exact_tokens import collect_tokens

CLIENTS, TOKENS, LEAVE = 64, 10, 0.3
BLOCKS_PER_JOB = 3
DEVICE_BLOCKS, HOST_BLOCKS = 4 * BLOCKS_PER_JOB, 24 * BLOCKS_PER_JOB
SEED = 20


@dataclass
class Client:
    """chunks: it leaves after that many of them; all are read if there are fewer"""

    marker: str
    chunks: int
    pieces: list[str] = field(default_factory=list)
    job_id: int = 0

    @property
    def prompt(self) -> str:
        return f"My secret word is {self.marker}. Say it. My secret word is"

    @property
    def stays(self) -> bool:
        return self.chunks > TOKENS


def create_clients() -> list[Client]:
    """Markers share no piece of three letters, so that even a part of one gives its owner away."""
    letters = random.Random(SEED)
    used: set[str] = set()
    clients: list[Client] = []
    while len(clients) < CLIENTS:
        marker = "".join(letters.choice("bcdfghjklmnpqrstvwxz") for _ in range(6))
        pieces = {marker[i : i + 3] for i in range(4)}
        if pieces.isdisjoint(used):
            used |= pieces
            leaves = letters.random() < LEAVE
            clients.append(Client(marker, letters.randint(1, TOKENS - 2) if leaves else TOKENS + 1))
    return clients


async def run(app: Application, client: Client) -> None:
    async with aclosing(app.chunks(app.completion(client.prompt, TOKENS, temperature=0))) as chunks:
        async for chunk in chunks:
            client.job_id = int(chunk["id"].removeprefix("cmpl-"), 16)
            client.pieces.append(chunk["choices"][0]["text"])
            if len(client.pieces) >= client.chunks:
                return


async def run_all(app: Application, clients: list[Client]) -> dict[str, list[int]]:
    """All of them at once; the tokens that the scheduler sent, by marker."""
    received, reading = await collect_tokens(app)
    await asyncio.gather(*(run(app, client) for client in clients))
    await app.settled()
    reading.cancel()
    return {client.marker: received[client.job_id] for client in clients}


async def test_sixty_four_clients_in_a_pool_for_four(reference: Reference) -> None:
    clients = create_clients()
    assert 10 < sum(not client.stays for client in clients) < 30
    pools = {"device_blocks": DEVICE_BLOCKS, "host_blocks": HOST_BLOCKS}
    async with Application(kv=pools) as app, asyncio.timeout(120):
        tight = await run_all(app, clients)
        metrics = await app.settled()

    for client in clients:
        text = "".join(client.pieces)
        others = [other.marker for other in clients if other is not client]
        leaked = [m for m in others if any(m[i : i + 3] in text for i in range(4))]
        assert not leaked, f"{client.marker} was answered {text!r}"
        assert len(tight[client.marker]) == TOKENS or not client.stays

    assert metrics["skipjoin_swap_in_blocks_total"] > 0
    for direction in ("out", "in"):
        moved = metrics[f"skipjoin_swap_{direction}_blocks_total"]
        assert metrics[f'skipjoin_swap_bytes_total{{direction="{direction}"}}'] == moved * 720 * 1024
        assert metrics[f'skipjoin_swap_seconds_total{{direction="{direction}"}}'] > 0
    assert metrics["skipjoin_kv_dropped_jobs_total"] > 0  # the host was full, too
    assert metrics["skipjoin_kv_integrity_violations_total"] == 0
    assert metrics["skipjoin_open_requests"] == 0
    assert metrics["skipjoin_batches_in_flight"] == 0
    for tier, total in (("device", DEVICE_BLOCKS), ("host", HOST_BLOCKS)):
        free, cached = (
            metrics[f'skipjoin_kv_blocks{{state="{state}",tier="{tier}"}}'] for state in ("free", "cached")
        )
        assert free + cached == total and (tier == "host" or not cached)  # what ended jobs leave for others

    calm_clients = [Client(client.marker, TOKENS + 1) for client in clients]
    device_blocks = CLIENTS * BLOCKS_PER_JOB + 8
    roomy = {"device_blocks": device_blocks, "host_blocks": HOST_BLOCKS, "prefix_reuse": False}
    async with Application(kv=roomy) as app, asyncio.timeout(120):
        calm = await run_all(app, calm_clients)
        metrics = await app.settled()
        assert metrics["skipjoin_swap_out_blocks_total"] == metrics["skipjoin_kv_dropped_jobs_total"] == 0
    for client in clients:
        tokens = tight[client.marker]
        if tokens != calm[client.marker][: len(tokens)]:  # a tie within rounding, or wrong
            reference.assert_greedy(client.prompt, tokens)
