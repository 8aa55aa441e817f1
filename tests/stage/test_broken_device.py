"""A CUDA error breaks the context: the stage says so and is replaced, instead of failing step after step."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from services.stage.service import StageService
from shared.config import parse
from shared.ids import Epoch, StepId
from shared.messages import StepInput, StepPlan, StepResult
from shared.subjects import Subjects


class Bus:
    epoch = Epoch(1)
    subjects = Subjects("test")

    def __init__(self) -> None:
        self.published: list[Any] = []

    async def publish(self, subject: str, body: Any) -> None:
        self.published.append((subject, body))


@pytest.mark.parametrize(
    ("error", "replaced"),
    [
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), True),
        (torch.OutOfMemoryError("CUDA out of memory"), False),
        (ValueError("no activations"), False),
    ],
)
async def test_only_errors_of_the_device_end_the_stage(error: Exception, replaced: bool) -> None:
    def fail(*_: Any) -> None:
        raise error

    service = StageService(parse({}), 0)
    service.bus = bus = Bus()  # type: ignore[assignment]
    service._loop = asyncio.get_running_loop()
    service._runner = SimpleNamespace(step=fail)  # type: ignore[assignment]
    step = StepInput(StepPlan(StepId(3), []))
    if replaced:
        with pytest.raises(torch.AcceleratorError):
            await service._compute(Epoch(1), step)
    else:
        await service._compute(Epoch(1), step)
    ((subject, result),) = bus.published
    assert subject == bus.subjects.step_result
    assert isinstance(result, StepResult) and type(error).__name__ in (result.error or "")
    service._compute_thread.shutdown()
