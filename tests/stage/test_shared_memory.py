import os
from pathlib import Path

import pytest
import torch

from services.stage.transport import SharedMemory
from services.stage.transport.tensors import content_of, describe, restore
from shared.errors import BusError


def segments(folder: Path = Path("/dev/shm")) -> list[str]:
    return [path.name for path in folder.glob(f"skipjoin-{os.getpid()}-*")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_round_trip_keeps_every_bit_and_leaves_nothing(dtype: torch.dtype) -> None:
    hidden = torch.randn(7, 33).to(dtype)
    hidden[0, 0] = torch.nan
    memory = SharedMemory()
    received = restore(describe(hidden), memory.read(memory.write(content_of(hidden))))
    assert received.dtype == dtype
    assert torch.equal(received.view(torch.int16), hidden.view(torch.int16))
    received[0, 0] = 1.0  # memory of its own
    assert segments() == []


def test_rows_of_a_larger_tensor() -> None:
    hidden = torch.randn(8, 6)[::2, 1:4]
    assert torch.equal(restore(describe(hidden), bytearray(content_of(hidden))), hidden)


def test_close_removes_what_nobody_fetched() -> None:
    memory = SharedMemory()
    memory.read(memory.write(memoryview(b"fetched")))
    memory.write(memoryview(b"not fetched"))
    assert len(segments()) == 1
    memory.close()
    assert segments() == []


def test_discard_removes_what_will_not_be_read() -> None:
    memory = SharedMemory()
    segment = memory.write(memoryview(b"x"))
    memory.discard(segment)
    memory.discard(segment)
    assert segments() == []


def test_start_removes_segments_of_dead_processes_only(tmp_path: Path) -> None:
    dead, alive, young, foreign = (
        tmp_path / name
        for name in (
            "skipjoin-999999999-1",
            f"skipjoin-{os.getpid()}-0",
            "skipjoin-999999999-2",
            "skipjoin-notes",
        )
    )
    for path in (dead, alive, young, foreign):
        path.write_bytes(b"x")
    for path in (dead, alive, foreign):
        os.utime(path, (0, 0))
    SharedMemory(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([alive, young, foreign])


def test_without_shared_memory(tmp_path: Path) -> None:
    assert not SharedMemory(tmp_path / "none").available


@pytest.mark.parametrize("name", ["skipjoin-1-1", "../etc/passwd", "skipjoin-1-1/../x"])
def test_segment_that_is_not_here_or_not_ours(name: str, tmp_path: Path) -> None:
    with pytest.raises(BusError, match="segment"):
        SharedMemory(tmp_path).read(name)
