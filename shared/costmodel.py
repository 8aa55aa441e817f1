"""What an iteration costs, as the profiler fits it and the scheduler and simulator use it.

prefill = a + b·Σn + c·Σn², decode = a + b·Σcontext + c·batch (seconds; DistServe's form). A mixed
iteration pays the fixed cost once: the larger of the two.
"""

from collections.abc import Iterable

import msgspec


class BatchLoad(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The work of one iteration.

    prefill_tokens: Σn over the jobs that compute more than one token
    prefill_squares: Σn·context of the same jobs, tokens² (n² when nothing was cached before)
    decode_jobs: how many jobs compute exactly one token
    decode_context: Σ context tokens of those
    """

    prefill_tokens: int = 0
    prefill_squares: int = 0
    decode_jobs: int = 0
    decode_context: int = 0

    @staticmethod
    def of(jobs: Iterable[tuple[int, int]]) -> "BatchLoad":
        """Of jobs that compute (new tokens) and then hold (context) tokens."""
        prefill_tokens = prefill_squares = decode_jobs = decode_context = 0
        for new_tokens, context in jobs:
            if new_tokens == 1:
                decode_jobs += 1
                decode_context += context
            else:
                prefill_tokens += new_tokens
                prefill_squares += new_tokens * context
        return BatchLoad(prefill_tokens, prefill_squares, decode_jobs, decode_context)


class CostModel(msgspec.Struct, frozen=True, array_like=True, tag="cost_model", gc=False):
    """Coefficients in seconds, seconds per token, seconds per token² and seconds per job.

    samples: iterations behind the fit; 0 means a guess made before anything was measured.
    """

    prefill_a: float
    prefill_b: float
    prefill_c: float
    decode_a: float
    decode_b: float
    decode_c: float
    samples: int = 0

    def seconds(self, load: BatchLoad) -> float:
        """Predicted time of one iteration through all stages, seconds."""
        return self._iteration(
            load.prefill_tokens, load.prefill_squares, load.decode_jobs, load.decode_context
        )

    def prefill(self, tokens: int) -> float:
        """Predicted time of one whole prompt of `tokens`, alone in its iteration, seconds."""
        computed = max(tokens, 2)
        return self._iteration(computed, computed * tokens, 0, 0)

    def decode(self, context: int) -> float:
        """Predicted time of one decode iteration of one job with `context` tokens, seconds."""
        return self._iteration(0, 0, 1, context)

    def share(self, prompt: float, output: float, batch: int) -> float:
        """Seconds that a job occupies the model when batches are full: its prompt, and its share of the
        decode iterations, in which all others are taken to be like it. prompt, output: tokens
        """
        iteration = self.decode_a + self.decode_c * batch + self.decode_b * batch * (prompt + output / 2)
        return self.prefill_b * prompt + self.prefill_c * prompt**2 + output * iteration / batch

    def _iteration(
        self, prefill_tokens: int, prefill_squares: int, decode_jobs: int, decode_context: int
    ) -> float:
        prefill = self.prefill_a if prefill_tokens else 0.0
        decode = self.decode_a if decode_jobs else 0.0
        return (
            max(prefill, decode)
            + self.prefill_b * prefill_tokens
            + self.prefill_c * prefill_squares
            + self.decode_b * decode_context
            + self.decode_c * decode_jobs
        )

    @property
    def minimum_iteration(self) -> float:
        """q1 of the paper: the shortest iteration there is, seconds."""
        return self.decode(1)


GUESS = CostModel(
    prefill_a=0.02, prefill_b=1e-3, prefill_c=0.0, decode_a=0.02, decode_b=0.0, decode_c=5e-3, samples=0
)
"""In force until the profiler has measured the first iterations."""
