"""One stay at a server: find out what it is, then run what is wanted, one run after another."""

import asyncio
import os
import platform
import resource
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from tqdm import tqdm

from loadgen.bench.client import Client, session
from loadgen.bench.measure import Spread, capacity, completed, per_token, tpot
from loadgen.bench.play import Player
from loadgen.bench.probe import Found, ProbeError, probe, warm_up
from loadgen.bench.record import OK, End, Header, Record, Run, RunFile
from loadgen.bench.schedule import LONE, Talk, all_at_once
from loadgen.bench.settings import Benchmark, Target

SPARE_FILES = 256
"""Open files that are no connections of the load."""


class Visit:
    """stop: set by Ctrl-C or SIGTERM; what is under way is cancelled then, and written"""

    def __init__(
        self, benchmark: Benchmark, name: str, http: aiohttp.ClientSession, found: Found, stop: asyncio.Event
    ) -> None:
        self.benchmark, self.name, self._http, self._found = benchmark, name, http, found
        self.stop = stop

    async def lone_iteration(self, requests: int) -> float:
        """Seconds between two tokens of a request that is alone, median over requests. Raises ProbeError.

        NaN if the visit was stopped.
        """
        records: list[Record] = []
        for number in range(requests):
            await self._play([LONE], ("lone", number), records.append)
        done = completed(records)
        if not done and not self.stop.is_set():
            raise ProbeError(f"{self.name}: no answer to requests that were alone: {_first_failure(records)}")
        # A server that sends an answer in one piece does not show its iterations: the prompt is in it then.
        return Spread.of(tpot(record) or per_token(record) for record in done).p50

    async def capacity(self, requests: int) -> float:
        """Requests a second of the workload when all arrive at once; NaN if the visit was stopped.

        Raises ProbeError.
        """
        talks = all_at_once(self.benchmark, requests)
        records: list[Record] = []
        await self._play(talks, ("capacity", self.benchmark.seed), records.append, "capacity")
        if not completed(records) and not self.stop.is_set():
            raise ProbeError(f"{self.name}: no answer under load: {_first_failure(records)}")
        return capacity(records)

    async def run(self, path: Path, header: Header, talks: list[Talk], place: int) -> Run:
        """place: among the runs; prompts differ from one to the next, else a server could reuse them."""
        header.server, header.machine, header.when = self._found.notes, _machine(), _now()
        records: list[Record] = []
        seed = (header.seed, place)
        await warm_up(self._http, self._found, self.benchmark.warm_up, seed)
        with RunFile(path, header) as file:

            def finished(record: Record) -> None:
                file.add(record)
                records.append(record)

            load = "" if header.load is None else f" {header.load:g} of capacity"
            rate = "its own rate" if header.rate is None else f"{header.rate:.3g}/s"
            end = await self._play(talks, seed, finished, f"{self.name}{load}, {rate}")
            file.finish(end)
        records.sort(key=lambda record: record.index)
        return Run(header, records, end)

    async def _play(
        self, talks: list[Talk], seed: tuple[Any, ...], finished: Callable[[Record], None], text: str = ""
    ) -> End:
        limits, endpoint = self.benchmark.limits, self._found.endpoint
        client = Client(self._http, endpoint, limits.timeout_s)
        total = sum(len(talk.asks) for talk in talks)
        failed = 0
        with tqdm(total=total, desc=text, unit=" requests", disable=None if text else True) as bar:

            def noted(record: Record) -> None:
                nonlocal failed
                failed += record.outcome != OK
                bar.set_postfix(open=player.open, failed=failed, refresh=False)
                bar.update()
                finished(record)

            player = Player(
                client, self._found.prompts, limits, seed, noted, self.stop, chat=endpoint.api == "chat"
            )
            return await player.play(talks)


@asynccontextmanager
async def visit(benchmark: Benchmark, name: str, url: str) -> AsyncIterator[Visit]:
    """Connected and probed. Raises ProbeError, ConfigError."""
    target = benchmark.targets[name]
    with_tokenizer = _with_tokenizer(target)
    _allow_connections(benchmark.limits.concurrency)
    async with session(url, target) as http:
        found = await probe(http, url, with_tokenizer)
        with _stopping() as stop:
            yield Visit(benchmark, name, http, found, stop)


def _with_tokenizer(target: Target) -> Target:
    """Our own application's tokenizer is a file on this machine."""
    if target.set is None or target.tokenizer is not None:
        return target
    from deploy.options import DEFAULT_CONFIG
    from services.stage.checkpoint import resolve
    from shared.config import load_document, override, parse

    model = parse(override(load_document(DEFAULT_CONFIG)[0], list(target.set))).model
    return msgspec.structs.replace(target, tokenizer=str(resolve(model, lambda text, fraction: None)))


@contextmanager
def _stopping() -> Iterator[asyncio.Event]:
    """An event that the first Ctrl-C or SIGTERM sets; the second one ends the process as usual."""
    loop = asyncio.get_running_loop()
    event = asyncio.Event()

    def restore() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    def stop() -> None:
        event.set()
        restore()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        yield event
    finally:
        restore()


def _allow_connections(wanted: int) -> None:
    """As many open files as the system gives: the usual limit of 1024 is `limits.concurrency` alone."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted + SPARE_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted + SPARE_FILES, hard), hard))


def _first_failure(records: list[Record]) -> str:
    return next(
        (f"{record.outcome} {record.detail}" for record in records if record.outcome != OK), "none sent"
    )


def _machine() -> dict[str, Any]:
    """load_average: of the minute before the run; much more than 0 means that others were at work."""
    return {
        "cpus": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
