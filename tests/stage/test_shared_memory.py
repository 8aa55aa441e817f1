import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from services.stage.transport import SharedMemory
from services.stage.transport.tensors import content_of, describe, restore
from shared.errors import BusError


def segments(folder: Path = Path("/dev/shm")) -> list[str]:
    return [path.name for path in folder.glob(f"skipjoin-{os.getpid()}-*")]


def read(memory: SharedMemory, name: str, like: Tensor) -> Tensor:
    found = torch.empty_like(like)
    memory.read(name, found)
    return found


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    memory = SharedMemory()
    yield memory
    memory.close()
    assert segments() == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_round_trip_keeps_every_bit(memory: SharedMemory, dtype: torch.dtype) -> None:
    hidden = torch.randn(7, 33).to(dtype)
    hidden[0, 0] = torch.nan
    name = memory.write(hidden)
    received = read(SharedMemory(), name, hidden)
    assert torch.equal(received.view(torch.int16), hidden.view(torch.int16))
    received[0, 0] = 1.0  # memory of its own
    assert read(memory, name, hidden)[0, 0].isnan()


def test_what_is_in_use_is_not_written_over_and_what_was_released_is(memory: SharedMemory) -> None:
    reader = SharedMemory()
    first, second, third = (torch.full((100,), float(value)) for value in (1, 2, 3))
    names = [memory.write(first), memory.write(second)]
    assert [read(reader, name, first)[0] for name in names] == [1, 2]
    memory.release(names[0])
    assert memory.write(third) == names[0]
    assert [read(reader, name, first)[0] for name in names] == [3, 2]
    assert len(segments()) == 2


def test_a_discarded_one_is_never_written_over(memory: SharedMemory) -> None:
    """Its reader may be at it still."""
    reader, first = SharedMemory(), torch.ones(100)
    name = memory.write(first)
    assert read(reader, name, first)[0] == 1
    memory.discard(name)
    memory.discard(name)
    memory.release(name)
    assert segments() == []
    assert memory.write(2 * first) != name
    assert read(reader, name, first)[0] == 1  # mapped still
    reader.forget()
    with pytest.raises(BusError, match="is not on this host"):
        read(reader, name, first)


def test_sizes_settle_at_the_largest(memory: SharedMemory) -> None:
    for size in (10, 10_000, 10, 5_000, 10_000):
        memory.release(memory.write(torch.zeros(size)))
    assert [Path("/dev/shm", name).stat().st_size for name in segments()] == [40_000]


def test_what_is_kept_is_bounded(tmp_path: Path) -> None:
    writer, reader = (SharedMemory(tmp_path, kept_bytes=1000) for _ in range(2))
    small, large = torch.zeros(100), torch.zeros(300)
    names = [writer.write(small), writer.write(small), writer.write(small), writer.write(large)]
    for name in names:
        read(reader, name, small)
    assert sum(segment.nbytes for segment in reader._others.values()) <= 1000
    for name in names:
        writer.release(name)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1000
    writer.close()


def test_no_room_is_an_error_that_leaves_nothing(
    memory: SharedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        memory.write(torch.ones(4))
    assert segments() == []


def test_rows_of_a_larger_tensor() -> None:
    hidden = torch.randn(8, 6)[::2, 1:4]
    assert torch.equal(restore(describe(hidden), bytearray(content_of(hidden))), hidden)


def test_close_removes_all() -> None:
    memory = SharedMemory()
    memory.release(memory.write(torch.ones(1)))
    memory.write(torch.ones(1000))
    memory.write(torch.ones(1))
    memory.close()
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
        SharedMemory(tmp_path).read(name, torch.empty(1))
