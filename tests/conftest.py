"""Shared by all tests: quiet threads, the embedded model, and what transformers says about it."""

import ctypes
import gc
import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch starts its workers


@pytest.fixture(autouse=True, scope="module")
def memory_is_given_back() -> Iterator[None]:
    """Models are in cycles, and what is freed stays in the allocator: a run of all tests would take all of a
    machine's memory, and Ray would end its processes.
    """
    yield
    give_memory_back()


def give_memory_back() -> None:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
