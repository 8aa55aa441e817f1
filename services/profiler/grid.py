"""The jobs that are run to learn what iterations cost, or whether they still cost what they did."""

from collections.abc import Iterator

from shared.config import ProfilerConfig
from shared.ids import new_job_id
from shared.messages import Limits, Sampling, Submit

REPEATS = 2
"""Each prompt length is measured this often: a single run may meet a burst of foreign load."""

BATCH_CONTEXT = 1024
"""Prompt tokens of a whole decode batch at most: its prefills take most of the start."""

CHECKS = 3
"""Prefills in a verification: the median forgives one that met a burst of foreign load."""


def batches(config: ProfilerConfig, limits: Limits, reply_to: str) -> Iterator[list[Submit]]:
    """Groups of jobs to run one group after another: a warm-up, single prefills, then batches of decodes.

    Each batch size is measured with the shortest prompts and with the longest that BATCH_CONTEXT allows: the
    cost per job and the cost per token of context cannot be told apart otherwise.
    Lengths are cut to what the model and the KV pool can hold.
    """
    lengths = _lengths(config, limits)
    if not lengths:
        return
    yield [_job(lengths[0], 1, reply_to)]
    for _ in range(REPEATS):
        for length in lengths:
            yield [_job(length, 1, reply_to)]
    for jobs in config.decode_batches:
        longest = max((length for length in lengths if jobs * length <= BATCH_CONTEXT), default=lengths[0])
        for length in sorted({lengths[0], longest}):
            if jobs * (length + config.decode_tokens) <= limits.capacity:
                yield [_job(length, config.decode_tokens, reply_to) for _ in range(jobs)]


def verification(config: ProfilerConfig, limits: Limits, reply_to: str) -> Iterator[list[Submit]]:
    """A warm-up, then a few short jobs one by one: enough for a median of prefills and one of decodes."""
    lengths = _lengths(config, limits)
    if not lengths:
        return
    yield [_job(lengths[0], 1, reply_to)]
    for _ in range(CHECKS):
        yield [_job(lengths[min(1, len(lengths) - 1)], min(3, config.decode_tokens), reply_to)]


def _lengths(config: ProfilerConfig, limits: Limits) -> list[int]:
    longest = limits.max_tokens_total - config.decode_tokens
    return sorted({min(length, longest) for length in config.prefill_tokens if min(length, longest) > 0})


def _job(prompt: int, output: int, reply_to: str) -> Submit:
    tokens = [1 + index % 64 for index in range(prompt)]  # any ids will do: cost does not depend on them
    return Submit(new_job_id(), reply_to, tokens, output, Sampling(temperature=0.0))
