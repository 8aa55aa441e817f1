"""Which replica gets a request: the one with the least outstanding work."""

from loadgen.simulate.capacity import work
from loadgen.simulate.models import ModelProfile
from shared.ids import JobId

FIRST_MEAN = 128.0
"""Output tokens expected before any answer has ended."""


class Router:
    """Work is predicted seconds at full batches of the requests that have not ended, each in full until then.
    The router knows a prompt's length; for the output it takes the mean of the answers that have ended.
    """

    def __init__(self, model: ModelProfile, replicas: int, batch: int, stages: int) -> None:
        self._model, self._batch, self._stages = model, batch, stages
        self.outstanding = [0.0] * replicas
        """Seconds, by replica."""
        self._work: list[dict[JobId, float]] = [{} for _ in range(replicas)]
        self._output_sum = FIRST_MEAN
        self._answers = 1

    @property
    def mean_output(self) -> float:
        """Tokens."""
        return self._output_sum / self._answers

    def choose(self) -> int:
        """The replica for the next request, the first of equals."""
        return self.outstanding.index(min(self.outstanding))

    def assigned(self, replica: int, job_id: JobId, prompt: int) -> None:
        seconds = work(self._model, float(prompt), self.mean_output, self._batch, self._stages)
        self._work[replica][job_id] = seconds
        self.outstanding[replica] += seconds

    def ended(self, replica: int, job_id: JobId, output: int) -> None:
        """output: tokens; 0 if it was refused"""
        mine = self._work[replica]
        self.outstanding[replica] -= mine.pop(job_id, 0.0)
        if not mine:
            self.outstanding[replica] = 0.0  # without the rounding of a million additions
        if output:
            self._output_sum += output
            self._answers += 1
