"""What is run at start fits into the model and the KV pool, and tells all coefficients apart."""

from collections.abc import Callable, Iterator

import pytest

from services.profiler.grid import BATCH_CONTEXT, batches, verification
from shared.config import ProfilerConfig
from shared.messages import Limits, Submit

Groups = Callable[[ProfilerConfig, Limits, str], Iterator[list[Submit]]]
ROOMY = Limits(8192, 16384)


def test_the_grid_fits_into_small_models_and_pools() -> None:
    limits = Limits(max_model_len=64, capacity=48)
    for group in [*batches(ProfilerConfig(), limits, "me"), *verification(ProfilerConfig(), limits, "me")]:
        assert group
        for job in group:
            assert len(job.prompt) + job.max_tokens <= 48
        assert sum(len(job.prompt) + job.max_tokens for job in group) <= 48


@pytest.mark.parametrize("groups", [batches, verification])
def test_a_context_too_short_for_any_measurement_gives_an_empty_grid(groups: Groups) -> None:
    assert list(groups(ProfilerConfig(), Limits(4, 4), "me")) == []


def test_decodes_vary_batch_and_context_but_prefill_little() -> None:
    decodes = [group for group in batches(ProfilerConfig(), ROOMY, "me") if group[0].max_tokens > 1]
    assert {len(group) for group in decodes} == set(ProfilerConfig().decode_batches)
    assert len({len(group[0].prompt) for group in decodes if len(group) == 4}) == 2
    assert all(sum(len(job.prompt) for job in group) <= BATCH_CONTEXT for group in decodes)


def test_a_verification_is_a_small_part_of_the_grid() -> None:
    def tokens(groups: Groups) -> int:
        jobs = [job for group in groups(ProfilerConfig(), ROOMY, "me") for job in group]
        return sum(len(job.prompt) + job.max_tokens for job in jobs)

    assert tokens(verification) < tokens(batches) / 10
