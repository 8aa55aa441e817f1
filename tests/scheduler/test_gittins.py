"""The index against its definition, and what it does to a schedule."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.gittins import ENOUGH, Gittins
from services.scheduler.lengths import REFRESH_EVERY, LengthDistribution
from tests.cores import Cores, create_config, create_submit


def reference_index(lengths: list[int], attained: int, first: float = 0.0) -> float:
    """min over Δ of E[min(L - a, Δ)] / E[w(L); L - a ≤ Δ], given L > a, by the book."""
    left = [length - attained for length in lengths if length > attained]
    unit = sum(1 / length for length in lengths) / len(lengths)
    ratios: list[float] = []
    for delta in left:
        work = first + sum(min(rest, delta) for rest in left) / len(left)
        worth = sum(1 / (attained + rest) for rest in left if rest <= delta) / unit / len(left)
        ratios.append(work / worth)
    return min(ratios, default=float("inf"))


@given(st.lists(st.integers(1, 300), min_size=REFRESH_EVERY, max_size=REFRESH_EVERY), st.floats(0, 50))
def test_index_equals_its_definition(lengths: list[int], first: float) -> None:
    distribution = LengthDistribution()
    for length in [1, *lengths]:  # the first one alone triggers an evaluation
        distribution.add(length)
    known = [1, *lengths]
    for attained in (1, 2, 4, 16, 64, 256):
        assert distribution.index(attained) == pytest.approx(reference_index(known, attained))
    assert distribution.index_before_start(first) == pytest.approx(reference_index(known, 0, first))


def test_a_job_that_has_outlived_all_others_goes_last() -> None:
    distribution = LengthDistribution()
    for _ in range(REFRESH_EVERY + 1):
        distribution.add(10)
    assert distribution.index(4) == pytest.approx(6.0, abs=0.5) and distribution.index(11) == float("inf")


def create_trained(lengths: list[int], **scheduler: object) -> Cores:
    """A scheduler that has seen jobs of these lengths finish."""
    cores = Cores(
        create_config(
            scheduler={"policy": "gittins", "max_batch_size": 1, "starvation_s": 1e9, **scheduler},
            kv={"device_blocks": 4096},
        )
    )
    for number in range(2 * ENOUGH):
        cores.submit(create_submit(10_000 + number, max_tokens=lengths[number % len(lengths)]))
        cores.run()
    cores.recorder.ends.clear()
    return cores


def test_lengths_that_are_alike_run_first_come_first_served() -> None:
    cores = create_trained([40])
    cores.submit(*(create_submit(number, max_tokens=40) for number in range(6)))
    cores.run()
    ends = cores.recorder.ends
    assert sorted(ends, key=lambda job_id: ends[job_id][1]) == list(range(6))
    turns = [job_id for event, job_id, _ in cores.recorder.events if event == "dispatched" and job_id < 6]
    switches = sum(before != after for before, after in pairwise(turns))
    assert switches <= 12, "equal jobs must not take turns"


def test_a_job_that_outlives_the_short_ones_makes_way_for_newcomers() -> None:
    """Bimodal: 9 of 10 have 4 tokens, one has 400. After 8 tokens a job is known to be long."""
    cores = create_trained([4] * 9 + [400])
    cores.submit(create_submit(0, max_tokens=400))
    cores.iterate(20)
    cores.submit(*(create_submit(number, max_tokens=4) for number in range(1, 6)))
    cores.run()
    assert max(cores.recorder.ends, key=lambda job_id: cores.recorder.ends[job_id][1]) == 0


def test_before_it_knows_anything_it_is_skip_join() -> None:
    generator = random.Random(5)
    jobs = [(generator.randint(1, 60), generator.randint(1, 30)) for _ in range(30)]
    times: list[list[float]] = []
    for policy in ("gittins", "skip-join"):
        cores = Cores(create_config(scheduler={"policy": policy, "max_batch_size": 2}))
        for number, (prompt, output) in enumerate(jobs):
            cores.submit(create_submit(number, prompt=prompt, max_tokens=output))
            if cores.plan():
                cores.finish_step()
        cores.run()
        times.append(cores.completion_times())
    assert times[0] == times[1]


def test_a_promoted_job_returns_to_its_own_priority_class() -> None:
    """Alpha lends it the first queue of all for one iteration, whatever its index says."""
    cores = create_trained([1])
    cores.submit(create_submit(1, max_tokens=50, priority=9), create_submit(2, max_tokens=50))
    policy = cores.scheduler.policy
    assert isinstance(policy, Gittins)
    (low,) = [job for job in policy.ordered() if job.job_id == 1]
    policy.promote(cores.clock.now() + 2e9)
    assert policy._queue_of[low.job_id] is policy._class(0)[0]
    policy._index_level = lambda job: 0
    policy.started(low)
    policy.ran(low, low.quantum, cores.clock.now())
    assert policy._queue_of[low.job_id] is policy._class(9)[0]


def test_tenants_are_told_apart_once_enough_of_their_jobs_have_finished() -> None:
    cores = Cores(
        create_config(scheduler={"policy": "gittins", "max_batch_size": 1, "starvation_s": 1e9}),
    )
    for number in range(2 * ENOUGH):
        tenant, tokens = ("brief", 2) if number % 2 else ("wordy", 90)
        cores.submit(create_submit(number, max_tokens=tokens, tenant=tenant))
        cores.run()
    policy = cores.scheduler.policy
    for number, tenant in enumerate(("wordy", "brief", "unknown"), start=1000):
        cores.submit(create_submit(number, max_tokens=90, tenant=tenant))
    wordy, brief, unknown = (job.level for job in sorted(policy.ordered(), key=lambda job: job.job_id))
    assert brief < wordy and brief <= unknown <= wordy


def test_tenants_that_clients_invent_do_not_fill_the_memory() -> None:
    cores = Cores(create_config(scheduler={"policy": "gittins"}))
    for number in range(1500):
        cores.submit(create_submit(number, max_tokens=1, tenant=f"tenant-{number}"))
        cores.run()
    policy = cores.scheduler.policy
    assert isinstance(policy, Gittins) and len(policy._by_kind) <= 512
