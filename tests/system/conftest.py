from collections.abc import Iterator

import pytest

from services.stage import checkpoint
from shared.config import ModelConfig
from tests.conftest import give_memory_back
from tests.system.otlp import Collector
from tests.system.reference import Reference


@pytest.fixture(scope="session")
def reference() -> Reference:
    return Reference(checkpoint.resolve(ModelConfig(), lambda text, fraction: None))


@pytest.fixture(autouse=True)
def every_test_gives_its_models_back() -> Iterator[None]:
    yield
    give_memory_back()


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running
