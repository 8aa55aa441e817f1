"""What an iteration costs, as the profiler fits it and the scheduler and simulator use it.

prefill = a + b·Σn + c·Σn², decode = a + b·Σcontext + c·batch (seconds; DistServe's form). A mixed
iteration pays the fixed cost once: the larger of the two.
"""

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

    def plus(self, new_tokens: int, context: int) -> "BatchLoad":
        """This load and one more job that computes `new_tokens` and then holds `context` tokens."""
        if new_tokens == 1:
            return BatchLoad(
                self.prefill_tokens, self.prefill_squares, self.decode_jobs + 1, self.decode_context + context
            )
        return BatchLoad(
            self.prefill_tokens + new_tokens,
            self.prefill_squares + new_tokens * context,
            self.decode_jobs,
            self.decode_context,
        )


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
        prefill = self.prefill_a if load.prefill_tokens else 0.0
        decode = self.decode_a if load.decode_jobs else 0.0
        return (
            max(prefill, decode)
            + self.prefill_b * load.prefill_tokens
            + self.prefill_c * load.prefill_squares
            + self.decode_b * load.decode_context
            + self.decode_c * load.decode_jobs
        )

    def prefill(self, tokens: int) -> float:
        """Predicted time of one whole prompt of `tokens`, alone in its iteration, seconds."""
        return self.seconds(BatchLoad().plus(max(tokens, 2), tokens))

    def decode(self, context: int) -> float:
        """Predicted time of one decode iteration of one job with `context` tokens, seconds."""
        return self.seconds(BatchLoad().plus(1, context))

    @property
    def minimum_iteration(self) -> float:
        """q1 of the paper: the shortest iteration there is, seconds."""
        return self.decode(1)


GUESS = CostModel(
    prefill_a=0.02, prefill_b=1e-3, prefill_c=0.0, decode_a=0.02, decode_b=0.0, decode_c=5e-3, samples=0
)
"""In force until the profiler has measured the first iterations."""
