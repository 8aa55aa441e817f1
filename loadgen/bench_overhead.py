"""Prints what the load client itself costs, against a server that answers at once.

    python -m loadgen.bench_overhead [--rate 500] [--seconds 10] [--tokens 1]

The server runs in a process of its own. The schedule's error is the time from when a request was due until
its headers were written; the rest of its latency is the server's and the kernel's as much as the client's.
"""

import argparse
import asyncio
import resource
import subprocess
import sys

import numpy as np
import uvloop

from loadgen.bench.client import Client, Endpoint, session
from loadgen.bench.play import Player
from loadgen.bench.prompts import Prompts, Vocabulary
from loadgen.bench.record import OK, Record
from loadgen.bench.schedule import Ask, Talk
from loadgen.bench.settings import Limits, Target
from loadgen.workload.arrivals import poisson

WARM_UP_S = 1.0
"""Left out of the figures: connections are made, and code runs for the first time."""

VOCABULARY = Vocabulary(("a",), (1,), ("a",), "words")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rate", type=float, default=500.0, help="requests a second, Poisson")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--tokens", type=int, default=1, help="of each answer")
    parser.add_argument("--plain-asyncio", action="store_true", help="without uvloop")
    options = parser.parse_args()
    stub = subprocess.Popen([sys.executable, "-m", "loadgen.stub_server"], stdout=subprocess.PIPE, text=True)
    try:
        assert stub.stdout is not None
        url = stub.stdout.readline().strip()
        records, cpu_s = (asyncio.run if options.plain_asyncio else uvloop.run)(_drive(url, options))
    finally:
        stub.terminate()
        stub.wait()
    measured = [record for record in records if record.scheduled >= WARM_UP_S]
    failed = [record for record in records if record.outcome != OK]
    late = 1e3 * np.array([record.sent - record.scheduled for record in measured if record.sent is not None])
    whole = 1e3 * np.array([record.end - record.scheduled for record in measured if record.end is not None])
    print("| requests | failed | req/s | error of the schedule, ms: P50 | P99 | max ", end="")
    print("| latency, ms: P50 | P99 | client CPU, ms a request |\n" + "|---" * 9 + "|")
    rate = len(measured) / (options.seconds - WARM_UP_S)
    p50, p99 = np.percentile(late, (50, 99))
    half, most = np.percentile(whole, (50, 99))
    print(
        f"| {len(records)} | {len(failed)} | {rate:.0f} | {p50:.2f} | {p99:.2f} | {late.max():.2f} "
        f"| {half:.2f} | {most:.2f} | {1e3 * cpu_s / len(records):.2f} |"
    )


async def _drive(url: str, options: argparse.Namespace) -> tuple[list[Record], float]:
    """The records, and CPU seconds of this process."""
    arrivals = poisson(int(1.2 * options.rate * options.seconds) + 1, options.rate, 0).tolist()
    talks = [
        Talk(at, (Ask(index, "stub", "", 8, options.tokens),))
        for index, at in enumerate(at for at in arrivals if at < options.seconds)
    ]
    endpoint = Endpoint(url, "stub", "completions", ignore_eos=True, token_ids=False)
    records: list[Record] = []
    async with session(url, Target(url=url)) as http:
        client = Client(http, endpoint, timeout_s=30)
        player = Player(client, Prompts(VOCABULARY), Limits(), (0,), records.append, asyncio.Event())
        before = resource.getrusage(resource.RUSAGE_SELF)
        await player.play(talks)
        after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return records, cpu_s


if __name__ == "__main__":
    main()
