"""The two KV tiers of one stage: a device tensor and a host tensor of the same layout."""

import logging
import math
import mmap
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from shared.config import KVConfig
from shared.errors import KVCapacityError

log = logging.getLogger("skipjoin.stage")

_GIB = 1024**3


@dataclass(frozen=True, slots=True)
class BlockShape:
    """One block of one stage: [layers, 2, block_size, kv_heads, head_dim], where 2 is K and V."""

    layers: int
    block_size: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def dims(self) -> tuple[int, ...]:
        return (self.layers, 2, self.block_size, self.kv_heads, self.head_dim)

    @property
    def bytes(self) -> int:
        return torch.Size(self.dims).numel() * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Tiers:
    """device, host: [blocks, layers, 2, block_size, kv_heads, head_dim]

    The block index comes first, so neighbouring blocks are one contiguous copy for all layers.
    """

    device: Tensor
    host: Tensor
    block_bytes: int


def allocate(shape: BlockShape, config: KVConfig, device: torch.device) -> Tiers:
    """Both tiers, zeroed. On CUDA the host tier is pinned if the system lets us.

    Raises KVCapacityError when the memory is not there.
    """
    device_bytes = config.device_blocks * shape.bytes
    host_bytes = config.host_blocks * shape.bytes
    if device.type == "cuda":
        _check("kv.device_blocks", config.device_blocks, device_bytes, torch.cuda.mem_get_info(device)[0])
        _check("kv.host_blocks", config.host_blocks, host_bytes, _available_memory())
    else:
        _check(
            "kv.device_blocks + kv.host_blocks",
            config.device_blocks + config.host_blocks,
            device_bytes + host_bytes,
            _available_memory(),
        )
    try:
        on_device = _device_tensor((config.device_blocks, *shape.dims), shape.dtype, device)
        on_host = _host_tensor((config.host_blocks, *shape.dims), shape.dtype, pin=device.type == "cuda")
    except (RuntimeError, MemoryError, OSError) as error:  # torch's out-of-memory errors are RuntimeErrors
        raise KVCapacityError(
            f"cannot allocate the KV cache of {device_bytes / _GIB:.2f} GiB on {device} and "
            f"{host_bytes / _GIB:.2f} GiB in host memory: lower kv.device_blocks or kv.host_blocks ({error})"
        ) from error
    return Tiers(on_device, on_host, shape.bytes)


def _device_tensor(dims: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type == "cpu":
        return _pageable(dims, dtype)
    return torch.zeros(dims, dtype=dtype, device=device)


def _host_tensor(dims: tuple[int, ...], dtype: torch.dtype, pin: bool) -> Tensor:
    if pin and dims[0]:
        try:
            return torch.zeros(dims, dtype=dtype, pin_memory=True)
        except RuntimeError as error:
            size = torch.Size(dims).numel() * dtype.itemsize / _GIB
            log.warning(
                "the host KV tier of %.2f GiB is pageable, its copies will be slower: pinning failed (%s); "
                "raise the limit of locked memory (ulimit -l, LimitMEMLOCK=) or lower kv.host_blocks",
                size,
                error,
            )
    return _pageable(dims, dtype)


def _pageable(dims: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros, written now: lack of memory shows here and not in mid-answer; masked slots hold finite numbers.

    On ordinary pages: the C library is told to ask for huge ones (see deploy.placement), for which a virtual
    machine may take 4 ms each. Blocks gain nothing from them.
    """
    elements = math.prod(dims)
    if elements == 0:
        return torch.zeros(dims, dtype=dtype)
    memory = mmap.mmap(-1, elements * dtype.itemsize, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).zero_().view(dims)


def _check(key: str, blocks: int, wanted: int, available: int) -> None:
    if wanted > available:
        raise KVCapacityError(
            f"{key}: {blocks} blocks take {wanted / _GIB:.2f} GiB on this stage, "
            f"{available / _GIB:.2f} GiB are free; about {blocks * available // wanted} blocks would fit"
        )


def _available_memory() -> int:
    """Bytes of RAM that this process may still take: of the machine, and of its cgroup if that is less."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.is_file() and used.is_file() and limit.read_text().strip() != "max":
        free = min(free, int(limit.read_text()) - int(used.read_text()))
    return free
