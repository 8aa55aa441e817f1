"""A prompt over the token budget is computed in parts, beside the decodes of others."""

import pytest

from shared.ids import JobId
from tests.cores import Cores, create_config, create_submit


def create_cores(**scheduler: object) -> Cores:
    settings = {"chunked_prefill": True, "max_batch_tokens": 20, "max_batch_size": 4, "policy": "fcfs"}
    return Cores(create_config(scheduler={**settings, **scheduler}))


def test_the_parts_fill_the_budget_and_only_the_last_draws() -> None:
    cores = create_cores(max_batch_size=1)
    cores.submit(create_submit(1, prompt=50, max_tokens=3))
    parts: list[tuple[int, int, bool]] = []
    while cores.plan():
        (job,) = cores.in_flight[0].jobs
        parts.append((job.start, len(job.tokens), job.sampling is not None))
        cores.finish_step()
    assert parts == [(0, 20, False), (20, 20, False), (40, 10, True), (50, 1, True), (51, 1, True)]
    assert cores.received[JobId(1)] == [1050, 1051, 1052]


def test_decodes_go_on_beside_a_long_prompt() -> None:
    """Without parts they would stand still for its whole prefill."""
    cores = create_cores(policy="fixed-priority")
    cores.submit(*(create_submit(number, prompt=4, max_tokens=30) for number in range(3)))
    cores.iterate(1)
    cores.submit(create_submit(9, prompt=100, max_tokens=2, priority=-1))
    for _ in range(5):
        cores.plan()
        jobs = {job.job_id: len(job.tokens) for job in cores.in_flight[0].jobs}
        assert jobs == {9: 17, 0: 1, 1: 1, 2: 1}
        cores.finish_step()
    cores.run()


@pytest.mark.parametrize("policy", ["skip-join", "mlfq", "gittins", "fair"])
def test_a_preempted_prompt_goes_on_where_it_was(policy: str) -> None:
    cores = create_cores(policy=policy, max_batch_size=1, starvation_s=1e9)
    cores.submit(create_submit(1, prompt=200, max_tokens=2, tenant="a"))
    starts: list[int] = []
    number = 10
    while cores.plan():
        for job in cores.in_flight[0].jobs:
            if job.job_id == 1:
                starts.append(job.start)
        if number < 14:
            cores.submit(create_submit(number, prompt=4, max_tokens=2, tenant="b"))
            number += 1
        cores.finish_step()
    assert starts == sorted(set(starts)) and starts[:3] == [0, 20, 40], "no part twice"
    assert cores.received[JobId(1)] == [1200, 1201]
    assert cores.scheduler.unfinished == 0


def test_an_abort_between_two_parts_gives_everything_back() -> None:
    cores = create_cores()
    cores.submit(create_submit(1, prompt=100))
    cores.iterate(2)
    cores.scheduler.abort([JobId(1)], cores.clock.now())
    cores.settle()
    assert JobId(1) not in cores.received


def test_a_failed_part_is_computed_again_from_the_start() -> None:
    cores = create_cores()
    cores.submit(create_submit(1, prompt=50, max_tokens=2))
    cores.iterate(1)
    cores.plan()
    cores.finish_step(error="boom")
    cores.run()
    assert cores.received[JobId(1)] == [1050, 1051]
