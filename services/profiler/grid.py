"""The jobs that are run at start to learn what iterations cost."""

from collections.abc import Iterator

from shared.config import ProfilerConfig
from shared.ids import new_job_id
from shared.messages import Limits, Sampling, Submit

REPEATS = 2
"""Each prompt length is measured this often: a single first run carries allocations."""


def batches(config: ProfilerConfig, limits: Limits, reply_to: str) -> Iterator[list[Submit]]:
    """Groups of jobs to run one group after another: a warm-up, single prefills, then batches of decodes.

    Lengths are cut to what the model and the KV pool can hold.
    """
    longest = limits.max_tokens_total - config.decode_tokens
    lengths = sorted({min(length, longest) for length in config.prefill_tokens if min(length, longest) > 0})
    if not lengths:
        return
    yield [_job(lengths[0], 1, reply_to)]
    for _ in range(REPEATS):
        for length in lengths:
            yield [_job(length, 1, reply_to)]
    for jobs in config.decode_batches:
        for length in (lengths[0], lengths[-1]):
            if jobs * (length + config.decode_tokens) <= limits.capacity:
                yield [_job(length, config.decode_tokens, reply_to) for _ in range(jobs)]


def _job(prompt: int, output: int, reply_to: str) -> Submit:
    tokens = [1 + index % 64 for index in range(prompt)]  # any ids will do: cost does not depend on them
    return Submit(new_job_id(), reply_to, tokens, output, Sampling(temperature=0.0))
