"""Prints what streaming costs the gateway, and what it costs somebody else who waits for a first token.

    python -m loadgen.calm_gateway [--streams 200] [--beside 100] [--real]      about 1 minute on two cores

A gateway runs in a process of its own over real NATS; a metronome gives every job one token each 50 ms, all
in one message, as an iteration of the scheduler does. So no model's computing hides the gateway's. With
--real the same is asked of the whole application, behind HAProxy, with the embedded model: there an iteration
takes longer the more jobs share it, so that is printed beside it.

The gateway's own share of a time to first token is what lies before the submission and after the token's
message has left: reading and tokenising the request, and in the token's beat those of all others.
"""

import argparse
import asyncio
import random
import subprocess
import sys
from statistics import median
from typing import NamedTuple

import aiohttp

from loadgen.calm.cpu import cpu_seconds
from loadgen.calm.metronome import Metronome
from loadgen.calm.real import real
from loadgen.calm.streams import FOREVER, Ended, Load, Streams, probe
from services.gateway.tokenizer import Tokenizer
from services.stage import checkpoint
from shared.config import parse
from shared.nats_server import EmbeddedNats, with_embedded_address
from shared.ports import unused_port

PERIOD_S = 0.05


class Cost(NamedTuple):
    """Of streams that ran to their end. cpu_ms: of the gateway, per streamed token"""

    ended: Ended
    cpu_ms: float


class Wait(NamedTuple):
    """Of probes, ms, median: from sent to first token, and of that the gateway's own."""

    first_token: float
    own: float


class Alone:
    """A gateway, NATS and the metronome; an async context."""

    def __init__(self, period: float) -> None:
        self._config = with_embedded_address(parse({}))
        folder = checkpoint.resolve(self._config.model, lambda text, fraction: None, weights=False)
        self.metronome = Metronome(self._config, Tokenizer(folder), period)
        self.model = self._config.model.served_name

    async def __aenter__(self) -> "Alone":
        self._start()
        await self.metronome.__aenter__()
        async with asyncio.timeout(60):
            await self._ready()
        return self

    async def __aexit__(self, *error: object) -> None:
        self.gateway.terminate()
        self.gateway.wait()
        await self.metronome.__aexit__(*error)
        self._nats.stop()

    def _start(self) -> None:
        nats = self._config.nats
        self._nats = EmbeddedNats(nats)
        port = unused_port()
        command = [sys.executable, "-m", "loadgen.calm.gateway_process", str(nats.url), str(nats.token)]
        self.gateway = subprocess.Popen([*command, str(port)])
        self.url = f"http://127.0.0.1:{port}"

    async def _ready(self) -> None:
        async with aiohttp.ClientSession() as http:
            while True:
                try:
                    async with http.get(f"{self.url}/ready") as answer:
                        if answer.status == 200:
                            return
                except aiohttp.ClientConnectionError:
                    pass
                await asyncio.sleep(0.1)

    async def cost(self, streams: int, tokens: int) -> Cost:
        before = cpu_seconds(self.gateway.pid)
        async with Streams(Load(self.url, self.model, streams, tokens)) as running:
            ended = await running.ended()
        spent = cpu_seconds(self.gateway.pid) - before
        return Cost(ended, 1e3 * spent / max(1, ended.tokens))

    async def waits(self, probes: int, beside: int) -> Wait:
        """Of lone requests one after another, while `beside` others stream."""
        if not beside:
            return await self._probe(probes)
        async with Streams(Load(self.url, self.model, beside, FOREVER, begun=beside)):
            return await self._probe(probes)

    async def _probe(self, count: int) -> Wait:
        beats = self.metronome.beats["probe"]
        beats.clear()
        waited: list[tuple[float, float]] = []
        pauses = random.Random(0)
        async with aiohttp.ClientSession() as http:
            for _ in range(count):
                waited.append(await probe(http, self.url, self.model, "probe"))
                await asyncio.sleep(pauses.uniform(0, self.metronome.period))  # anywhere between two beats
        own = [
            first - sent - (beat.first - beat.submitted)
            for (sent, first), beat in zip(waited, beats, strict=True)
        ]
        return Wait(1e3 * median(first - sent for sent, first in waited), 1e3 * median(own))


async def measure(streams: int, tokens: int, beside: int, probes: int) -> None:
    async with Alone(PERIOD_S) as alone:
        await alone.cost(8, 8)  # code that runs for the first time
        print("### Streams at once, one token each every 50 ms\n")
        print("| streams | outcome | tokens | gateway CPU, ms a token |\n|---|---|---|---|")
        for count in sorted({streams // 10, streams // 2, streams}):
            ended, cpu_ms = await alone.cost(count, tokens)
            print(f"| {count} | {outcome(ended)} | {ended.tokens} | {cpu_ms:.3f} |", flush=True)
        print("\n### A lone request: time to first token, ms (median)\n")
        print("| others that stream | first token | of it the gateway's own |\n|---|---|---|")
        idle = await alone.waits(probes, 0)
        print(f"| 0 | {idle.first_token:.1f} | {idle.own:.1f} |", flush=True)
        loaded = await alone.waits(probes, beside)
        print(f"| {beside} | {loaded.first_token:.1f} | {loaded.own:.1f} |")
        print(f"| growth | {loaded.first_token - idle.first_token:.1f} | {loaded.own - idle.own:.1f} |")
        print(f"\nBeats came {1e3 * median(alone.metronome.late):.1f} ms late (median).\n", flush=True)


def outcome(ended: Ended) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(ended.outcomes.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=200, help="of each stream")
    parser.add_argument("--beside", type=int, default=100, help="streams beside a lone request")
    parser.add_argument("--probes", type=int, default=200, help="lone requests, one after another")
    parser.add_argument("--real", action="store_true", help="the whole application too, 5 minutes more")
    options = parser.parse_args()
    asyncio.run(measure(options.streams, options.tokens, options.beside, options.probes))
    if options.real:
        real(options.streams, options.beside)


if __name__ == "__main__":
    main()
