from collections.abc import Iterator

import pytest

from services.stage import checkpoint
from shared.config import ModelConfig
from tests.system.otlp import Collector
from tests.system.reference import Reference


@pytest.fixture(scope="session")
def reference() -> Reference:
    return Reference(checkpoint.resolve(ModelConfig(), lambda text, fraction: None))


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running
