"""What the ranks of one stage tell each other while they compute: sums, activations, logits.

All of them call the same operations in the same order, from their compute threads. A rank that does not come
ends the wait of the others with an error: at once when its process has ended, else after a timeout.
"""

from datetime import timedelta
from typing import Any, Protocol

import torch
from torch import Tensor

from services.stage.gloo import gloo_group
from shared.errors import RankLost

dist: Any = torch.distributed
"""What is used of it is public, but for its type checkers."""


class Collectives(Protocol):
    """Raises RankLost from every operation when another rank does not take part."""

    @property
    def rank(self) -> int: ...

    @property
    def ranks(self) -> int: ...

    def sum(self, tensor: Tensor) -> Tensor:
        """Over all ranks, in place; the same on all of them."""
        ...

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Rank 0's values, in place."""
        ...

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """On rank 0 the tensors of all ranks, which have one shape; elsewhere an empty list."""
        ...

    def abort(self) -> None:
        """From another thread: end whatever waits."""
        ...


class Alone:
    """The only rank of its stage."""

    rank = 0
    ranks = 1

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor

    def broadcast(self, tensor: Tensor) -> Tensor:
        return tensor

    def gather(self, tensor: Tensor) -> list[Tensor]:
        return [tensor]

    def abort(self) -> None:
        pass


class ProcessGroup:
    """torch.distributed without its process-wide default group: a process may hold ranks of several stages.

    gloo for tensors on a CPU, NCCL on CUDA.
    """

    def __init__(
        self, store: Any, rank: int, ranks: int, device: torch.device, address: str, timeout_s: float
    ) -> None:
        """Returns when all ranks are there. address: where the other ranks reach this one.

        Raises RankLost if they are not within the timeout.
        """
        self.rank = rank
        self.ranks = ranks
        timeout = timedelta(seconds=timeout_s)
        try:
            if device.type == "cuda":
                self._group = _nccl(store, rank, ranks, timeout)
            else:
                self._group = gloo_group(store, rank, ranks, address, timeout)
        except RuntimeError as error:
            raise RankLost(f"rank {rank} could not reach the other {ranks - 1}: {error}") from error

    def sum(self, tensor: Tensor) -> Tensor:
        self._wait(self._group.allreduce, [tensor])
        return tensor

    def broadcast(self, tensor: Tensor) -> Tensor:
        options = dist.BroadcastOptions()
        options.rootRank = 0
        self._wait(self._group.broadcast, [tensor], options)
        return tensor

    def gather(self, tensor: Tensor) -> list[Tensor]:
        options = dist.GatherOptions()
        options.rootRank = 0
        gathered = [torch.empty_like(tensor) for _ in range(self.ranks)] if self.rank == 0 else []
        self._wait(self._group.gather, [gathered] if gathered else [], [tensor], options)
        return gathered

    def abort(self) -> None:
        self._group.abort()

    def _wait(self, operation: Any, *arguments: Any) -> None:
        try:
            operation(*arguments).wait()
        except RuntimeError as error:
            raise RankLost(f"another rank did not take part in a collective operation: {error}") from error


def rendezvous(host: str) -> tuple[Any, int]:
    """Where the ranks of a gang find each other, for as long as the first result lives; and its port."""
    store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
    return store, store.port


def join_rendezvous(host: str, port: int) -> Any:
    return dist.TCPStore(host, port, is_master=False)


def _nccl(store: Any, rank: int, ranks: int, timeout: timedelta) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, ranks, options)
