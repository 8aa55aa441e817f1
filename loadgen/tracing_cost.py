"""Prints what traces cost: output tokens per second with every request traced over those with none.

    python -m loadgen.tracing_cost [--rounds 12] [--requests 16] [--tokens 48]

Both run by turns on one server, about 5 minutes on two idle cores. It sends its spans to a receiver here,
which drops them. A request without a trace carries a traceparent that says so. Timelines are recorded for
both, as they cannot be switched off: `python -m loadgen.plan_cost` prints what they cost the scheduler.
"""

import argparse
import asyncio
import secrets
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

from loadgen.served import ServedApplication
from loadgen.side_by_side import MODEL, PROMPT

GOAL = 0.98


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12, help="of one run with traces and one without")
    parser.add_argument("--requests", type=int, default=16, help="at once (default 16)")
    parser.add_argument("--tokens", type=int, default=48, help="output tokens of each (default 48)")
    options = parser.parse_args()
    with receiver() as sink:
        settings = (f"tracing.otlp_endpoint={sink.endpoint}", "kv.device_blocks=64", "kv.host_blocks=256")
        with ServedApplication(*settings) as served:
            pairs = asyncio.run(measure(served.url, options.rounds, options.requests, options.tokens))
    report(pairs, sink.received)


class Sink:
    """endpoint: of OTLP/HTTP; received: bytes of the spans that came"""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.received = 0


@contextmanager
def receiver() -> Iterator[Sink]:
    """What a collector costs its clients, without what it costs itself: it reads and forgets."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            sink.received += len(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    sink = Sink(f"http://127.0.0.1:{server.server_port}/v1/traces")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield sink
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def measure(url: str, rounds: int, requests: int, tokens: int) -> list[tuple[float, float]]:
    """Tokens per second with and without traces, by round; which comes first changes."""
    pairs: list[tuple[float, float]] = []
    async with httpx.AsyncClient(base_url=url, timeout=600) as http:
        for traced in (True, False, True, False):  # warms up
            await throughput(http, requests, tokens, traced=traced)
        for number in range(rounds):
            order = (True, False) if number % 2 == 0 else (False, True)
            measured = {traced: await throughput(http, requests, tokens, traced=traced) for traced in order}
            pairs.append((measured[True], measured[False]))
    return pairs


async def throughput(http: httpx.AsyncClient, requests: int, tokens: int, *, traced: bool) -> float:
    """Output tokens per second of so many requests at once."""

    async def ask(number: int) -> None:
        flags = "01" if traced else "00"
        body = {
            "model": MODEL,
            "prompt": f"Story {number}. {PROMPT}",
            "max_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0,
            "cache_salt": secrets.token_hex(8),  # nothing of an earlier round is reused
        }
        header = f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-{flags}"
        answer = await http.post("/v1/completions", json=body, headers={"traceparent": header})
        answer.raise_for_status()

    began = time.perf_counter()
    await asyncio.gather(*(ask(number) for number in range(requests)))
    return requests * tokens / (time.perf_counter() - began)


def report(pairs: list[tuple[float, float]], received: int) -> None:
    print("| round | traced, tokens/s | not traced | ratio |\n|---|---|---|---|")
    for number, (on, off) in enumerate(pairs):
        print(f"| {number} | {on:.1f} | {off:.1f} | {on / off:.3f} |")
    ratios = [on / off for on, off in pairs]
    ratio = statistics.median(ratios)  # one disturbed round does not move it
    lower, _, upper = statistics.quantiles(ratios, n=4)
    verdict = "met" if ratio >= GOAL else "missed"
    print(
        f"\nratio {ratio:.3f} (median; quartiles {lower:.3f} and {upper:.3f}; goal {GOAL}: {verdict}); "
        f"{received / 1e6:.2f} MB of spans"
    )


if __name__ == "__main__":
    main()
