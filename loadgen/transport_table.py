"""Prints how long activations take from one stage's process to the next one's, by way and size.

    python -m loadgen.transport_table [--repeat 30]        about a minute

Milliseconds from the call of `send` until the other process has the tensor in memory of its own: median over
the repetitions, in which the ways take turns. One step at a time, over a NATS server of its own.

auto: as configured by default, on one host
apart: auto between stages that share no memory; `between_hosts: distributed` in the second one
-: does not fit into a message
"""

import argparse
import asyncio
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from services.stage.transport import HopMetrics, Receiver, Sender, SharedMemory
from shared.bus import Bus
from shared.config import Config, parse
from shared.errors import PayloadTooLarge
from shared.ids import Epoch, StepId
from shared.messages import Hello, StepInput, StepPlan
from shared.metrics import Registry
from shared.nats_server import EmbeddedNats, with_embedded_address
from shared.subjects import Subjects
from shared.supervise import Supervisor

_EPOCH = Epoch(1)
_WARM = 3
_KIB = 1024
_SIZES = tuple(size * _KIB for size in (2, 16, 64, 256, 512, 1024, 4096, 16384, 65536))
_WAYS: dict[str, dict[str, str]] = {
    "inline": {"transport": "inline"},
    "shm": {"transport": "shm"},
    "chunked": {"transport": "chunked"},
    "distributed": {"transport": "distributed"},
    "auto": {},
    "apart": {},
    "apart, distributed": {"between_hosts": "distributed"},
}
_RIVALS = {
    "auto": ("inline", "shm", "chunked", "distributed"),
    "apart": ("inline", "chunked"),
    "apart, distributed": ("inline", "chunked", "distributed"),
}
"""What an automatic choice can take where it is."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeat", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    config = with_embedded_address(parse({}))
    nats = EmbeddedNats(config.nats)
    here, there = multiprocessing.get_context("spawn").Pipe()
    try:
        with TemporaryDirectory() as elsewhere:
            asyncio.run(_measure(config, (here, there), elsewhere, options.repeat))
    finally:
        nats.stop()


def _configs(config: Config) -> dict[str, Config]:
    tree: dict[str, Any] = {"nats": {"url": config.nats.url, "token": config.nats.token}}
    return {way: parse({**tree, "stage": stage}) for way, stage in _WAYS.items()}


async def _connect(config: Config, way: str, index: int) -> Bus:
    prefix = "".join(letter for letter in way if letter.isalpha())
    bus = await Bus.connect(config.nats, Subjects(prefix).pipeline(0), f"stage{index}", Registry())
    bus.epoch = _EPOCH
    return bus


# ------------------------------------------------------------ the sending process


async def _measure(config: Config, pipe: tuple[Connection, Connection], elsewhere: str, repeat: int) -> None:
    here, there = pipe
    supervisor = Supervisor("transport")
    senders: dict[str, Sender] = {}
    buses: list[Bus] = []
    for way, of_way in _configs(config).items():
        bus = await _connect(of_way, way, 0)
        buses.append(bus)
        senders[way] = Sender(of_way, 0, bus, SharedMemory(), HopMetrics(Registry(), 0))
        senders[way].begin_epoch()
        for name, loop in (await senders[way].loops()).items():
            supervisor.start(f"{way}: {name}", loop)
    receiving = multiprocessing.get_context("spawn").Process(
        target=_receive_all, args=(config, there, elsewhere)
    )
    receiving.start()
    print(f"| activations | {' | '.join(_WAYS)} | auto / best | apart / best | apart, distributed / best |")
    print("|---" * (1 + len(_WAYS) + len(_RIVALS)) + "|")
    steps = {way: 0 for way in _WAYS}
    for size in _SIZES:
        hidden = torch.randn(size // 4).view(1, -1)
        times: dict[str, list[float]] = {way: [] for way in _WAYS}
        for turn in range(_WARM + repeat):
            for way, sender in senders.items():
                steps[way] += 1
                seconds = await _send(sender, StepId(steps[way]), hidden, here)
                if turn >= _WARM and seconds is not None:
                    times[way].append(seconds)
        print(_row(size, {way: 1000 * median(found) for way, found in times.items() if found}), flush=True)
    here.send(None)
    await asyncio.to_thread(receiving.join)
    await supervisor.stop()
    for sender in senders.values():
        sender.close()
    for bus in buses:
        await bus.close()


async def _send(sender: Sender, step_id: StepId, hidden: torch.Tensor, here: Connection) -> float | None:
    """Seconds until the other process had it; None if this way does not take it."""
    began = time.monotonic()
    try:
        await sender.send(_EPOCH, StepInput(StepPlan(step_id)), hidden)
    except PayloadTooLarge:
        return None
    return await asyncio.to_thread(here.recv) - began


def _row(size: int, found: dict[str, float]) -> str:
    cells = [f"{found[way]:.2f}" if way in found else "-" for way in _WAYS]
    for automatic, rivals in _RIVALS.items():
        best = min(found[rival] for rival in rivals if rival in found)
        cells.append(f"{found[automatic] / best:.2f}")
    return f"| {size // _KIB} KiB | {' | '.join(cells)} |"


# ------------------------------------------------------------ the receiving process


def _receive_all(config: Config, there: Connection, elsewhere: str) -> None:
    torch.set_num_threads(1)
    asyncio.run(_receive(config, there, elsewhere))


async def _receive(config: Config, there: Connection, elsewhere: str) -> None:
    """Says for each step at what time it was here; ends when anything comes through the pipe."""
    supervisor = Supervisor("transport")
    for way, of_way in _configs(config).items():
        bus = await _connect(of_way, way, 1)
        memory = SharedMemory(Path(elsewhere)) if way.startswith("apart") else SharedMemory()
        receiver = Receiver(of_way.stage, 1, bus, memory, HopMetrics(Registry(), 1))
        receiver.begin_epoch()
        for name, loop in (await receiver.loops()).items():
            supervisor.start(f"{way}: {name}", loop)
        supervisor.start(f"{way}: steps", await _steps(bus, receiver, there.send))
        await bus.publish(bus.subjects.hello("stage1"), Hello("stage1", bus.instance, True, ""))
    await asyncio.to_thread(there.recv)
    await supervisor.stop()


async def _steps(bus: Bus, receiver: Receiver, tell: Callable[[float], None]) -> Any:
    steps = await bus.subscribe(bus.subjects.stage_step(1))

    async def receive() -> None:
        async for delivery in steps:
            assert isinstance(delivery.body, StepInput)
            await receiver.fetch(_EPOCH, delivery.body)
            here_at = time.monotonic()
            await receiver.taken(delivery.body.plan.step_id)
            tell(here_at)

    return receive()


if __name__ == "__main__":
    main()
