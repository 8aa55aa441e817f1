"""Memory that cannot be had: which failures end the start, and which only cost speed."""

import errno
from typing import Any

import pytest
import torch

from services.stage import tiers
from services.stage.copier import Copier
from services.stage.tiers import BlockShape, Tiers, allocate
from shared.config import KVConfig
from shared.errors import KVCapacityError
from shared.ids import BlockId, JobId, TransferId
from shared.messages import Direction, Directive, Move

SHAPE = BlockShape(2, 16, 4, 1024, torch.float32)
MIB_64 = KVConfig(device_blocks=4, host_blocks=64)
"""A host tier of 64 MiB: 64 blocks of 1 MiB."""

zeros = torch.zeros


def refuse_to_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    """As CUDA does beyond the limit of locked memory."""

    def allocate(*args: Any, pin_memory: bool = False, **fields: Any) -> torch.Tensor:
        if pin_memory:
            raise RuntimeError("CUDA error: out of memory")
        return zeros(*args, **fields)

    monkeypatch.setattr(tiers.torch, "zeros", allocate)


def test_a_host_tier_that_cannot_be_pinned_is_pageable_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refuse_to_pin(monkeypatch)
    host = tiers._host_tensor((64, *SHAPE.dims), SHAPE.dtype, pin=True)
    (warning,) = caplog.records
    assert warning.levelname == "WARNING"
    for part in ("0.06 GiB", "CUDA error: out of memory", "ulimit -l", "kv.host_blocks"):
        assert part in warning.getMessage()

    assert not host.is_pinned() and host.shape == (64, *SHAPE.dims) and not host.any()
    copier = Copier(
        Tiers(torch.ones((4, *SHAPE.dims)), host, SHAPE.bytes), 1, lambda _: None, lambda *_: None
    )
    move = Move(BlockId(1), BlockId(60), 2)
    copier.start([Directive(TransferId(1), JobId(1), Direction.OUT, [move])])
    copier.wait([TransferId(1)])
    copier.close()
    assert host[60:62].eq(1).all() and not host[:60].any()


def test_a_tier_may_be_empty() -> None:
    both = allocate(SHAPE, KVConfig(device_blocks=2, host_blocks=0), torch.device("cpu"))
    assert both.host.shape == (0, *SHAPE.dims) and not both.device.any()


def test_on_a_cpu_nothing_is_pinned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refuse_to_pin(monkeypatch)
    both = allocate(SHAPE, MIB_64, torch.device("cpu"))
    assert (len(both.device), len(both.host), both.block_bytes) == (4, 64, SHAPE.bytes)
    assert not caplog.records


def test_memory_that_is_not_there_is_an_error_with_the_blocks_that_would_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tiers, "_available_memory", lambda: 34 * SHAPE.bytes)
    with pytest.raises(KVCapacityError, match=r"kv.device_blocks \+ kv.host_blocks: 68 .* about 34 blocks"):
        allocate(SHAPE, MIB_64, torch.device("cpu"))


@pytest.mark.parametrize(
    "refusal",
    [
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp] not enough memory"),
        MemoryError(),
    ],
)
def test_memory_that_is_refused_in_spite_of_it_is_the_same_error(
    monkeypatch: pytest.MonkeyPatch, refusal: Exception
) -> None:
    def refuse(*args: Any) -> None:
        raise refusal

    monkeypatch.setattr(tiers.mmap, "mmap", refuse)
    with pytest.raises(KVCapacityError, match=r"lower kv\.device_blocks or kv\.host_blocks"):
        allocate(SHAPE, MIB_64, torch.device("cpu"))
