from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from services.stage import checkpoint
from shared.config import ModelConfig

from .models import CONFIGS, save_model

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, torch.nn.Module]]:
    """Folder and transformers model of a family in `models.CONFIGS`, made once."""
    made: dict[str, tuple[Path, torch.nn.Module]] = {}

    def make(family: str) -> tuple[Path, torch.nn.Module]:
        if family not in made:
            folder = tmp_path_factory.mktemp(family)
            made[family] = (folder, save_model(CONFIGS[family], folder))
        return made[family]

    return make


@pytest.fixture(scope="session")
def embedded_model() -> Path:
    """Converted on the first run ever (about 20 s), then taken from the default cache."""
    return checkpoint.resolve(ModelConfig(), lambda text, fraction: None)
