"""Shared by all tests: quiet threads, the embedded model, and what transformers says about it."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch starts its workers

_SYSTEM = Path(__file__).with_name("system")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those of the whole application run one after the other, beside all others."""
    for item in items:
        if item.path.is_relative_to(_SYSTEM):
            item.add_marker(pytest.mark.xdist_group("system"))
