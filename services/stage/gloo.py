"""Process groups of torch.distributed over gloo, apart from the process's default one."""

from datetime import timedelta
from typing import Any

from torch.distributed import ProcessGroupGloo

_gloo: Any = ProcessGroupGloo
"""Its stubs know neither options nor devices."""


def gloo_group(store: Any, rank: int, size: int, address: str, timeout: timedelta) -> Any:
    """Returns when all `size` members are there. address: where the others reach this one.

    Raises RuntimeError if they are not within the timeout, which also holds for every operation.
    """
    options = _gloo._Options()
    options._timeout = timeout
    # Named, because gloo's own choice asks the resolver for the host's name, which need not know it.
    options._devices = [_gloo.create_device(hostname=address)]
    return _gloo(store, rank, size, options)
