import os
from pathlib import Path

import pytest
import torch

from services.stage.transport import ActivationTransport
from shared.config import StageConfig
from shared.errors import BusError, ConfigError
from shared.messages import TensorData


def segments(folder: Path = Path("/dev/shm")) -> list[str]:
    return [path.name for path in folder.glob(f"skipjoin-{os.getpid()}-*")]


@pytest.mark.parametrize("transport", ["inline", "shm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_round_trip_keeps_every_bit_and_leaves_nothing(transport: str, dtype: torch.dtype) -> None:
    hidden = torch.randn(7, 33).to(dtype)
    hidden[0, 0] = torch.nan
    way = ActivationTransport(StageConfig(transport=transport))
    data = way.pack(hidden)
    assert (data.segment is None) == (transport == "inline")
    assert (len(data.data) > 0) == (transport == "inline")
    received = way.unpack(data)
    assert received.dtype == dtype
    assert torch.equal(received.view(torch.int16), hidden.view(torch.int16))
    received[0, 0] = 1.0  # memory of its own
    assert segments() == []


def test_auto_chooses_by_size() -> None:
    way = ActivationTransport(StageConfig(inline_bytes=400))
    assert way.pack(torch.zeros(1, 100)).segment is None
    large = way.pack(torch.zeros(1, 101))
    assert large.segment is not None
    way.unpack(large)


def test_rows_of_a_larger_tensor() -> None:
    way = ActivationTransport(StageConfig())
    hidden = torch.randn(8, 6)[::2, 1:4]
    assert torch.equal(way.unpack(way.pack(hidden)), hidden)


def test_close_removes_what_nobody_fetched() -> None:
    way = ActivationTransport(StageConfig(transport="shm"))
    way.unpack(way.pack(torch.zeros(2, 2)))
    way.pack(torch.zeros(2, 2))
    assert len(segments()) == 1
    way.close()
    assert segments() == []


def test_discard_removes_what_will_not_be_unpacked() -> None:
    way = ActivationTransport(StageConfig(transport="shm"))
    data = way.pack(torch.zeros(2, 2))
    way.discard(data)
    way.discard(data)
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
    ActivationTransport(StageConfig(), tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([alive, young, foreign])


def test_without_shared_memory(tmp_path: Path) -> None:
    missing = tmp_path / "none"
    with pytest.raises(ConfigError, match=r"stage\.transport"):
        ActivationTransport(StageConfig(transport="shm"), missing)
    way = ActivationTransport(StageConfig(inline_bytes=1), missing)
    assert way.pack(torch.zeros(4, 4)).segment is None


def test_full_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    demanded, optional = (
        ActivationTransport(StageConfig(transport=t, inline_bytes=1)) for t in ("shm", "auto")
    )

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("services.stage.transport.os.open", full)
    with pytest.raises(BusError, match="enlarge it"):
        demanded.pack(torch.zeros(4, 4))
    assert optional.pack(torch.ones(4, 4)).data == torch.ones(4, 4).numpy().tobytes()


@pytest.mark.parametrize("name", ["skipjoin-1-1", "../etc/passwd", "skipjoin-1-1/../x"])
def test_segment_that_is_not_here_or_not_ours(name: str, tmp_path: Path) -> None:
    way = ActivationTransport(StageConfig(), tmp_path)
    with pytest.raises(BusError, match="segment"):
        way.unpack(TensorData("float32", [1, 1], segment=name))
