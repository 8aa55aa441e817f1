"""The scheduler and KV-cache cores of `tests.cores` over stages that really compute and copy."""

from collections import Counter
from pathlib import Path

from shared.config import Config
from shared.ids import JobId
from shared.messages import Direction, Directive, StepPlan
from tests.cores import Cores, create_submit

from .stages import Stages


class LiveCores(Cores):
    """swapped: blocks by direction"""

    def __init__(self, config: Config, folder: Path) -> None:
        self.stages = Stages(config, folder)
        super().__init__(config, copies=self.stages.copies, watched=True)
        self.swapped: Counter[Direction] = Counter()

    def __enter__(self) -> "LiveCores":
        return self

    def __exit__(self, *_: object) -> None:
        self.stages.close()

    def submit_prompt(self, job_id: int, prompt: list[int], max_tokens: int) -> None:
        self.submit(create_submit(job_id, prompt=prompt, max_tokens=max_tokens))

    def abort(self, job_id: int) -> None:
        self.scheduler.abort([JobId(job_id)], self.clock.now())

    def plan(self) -> bool:
        self._hear()
        return super().plan()

    def _begin(self, step: StepPlan | None) -> bool:
        has_jobs = super()._begin(step)
        if step is not None:
            for directive in step.directives:
                self.swapped[directive.direction] += directive.blocks
            for runner in self.stages.runners:
                runner.start_transfers(step.directives)
        return has_jobs

    def compute(self, step: StepPlan) -> list[int]:
        hidden = None
        tokens: list[int] = []
        for runner in self.stages.runners:
            output = runner.step(step, hidden)
            hidden, tokens = output.hidden, output.tokens
        return tokens

    def finish_transfer(self, transfer_id: int) -> None:
        """Only when every rank has acknowledged does the manager hear of it from the last."""
        for directive in [d for d in self.moving if d.transfer_id == transfer_id]:
            self.stages.wait(directive.transfer_id)
        self._hear()

    def _hear(self) -> None:
        """Acknowledgements, in the order in which they came in."""
        for stage, rank, done in self.stages.take_acknowledged():
            finished = self.kv.transfer_done(done.transfer_id, stage, rank)
            if finished is not None:
                self._finished(finished)

    def _finished(self, directive: Directive) -> None:
        self.moving.remove(directive)
        assert self.contents is not None
        self.contents.finish(directive)
        self.check()
