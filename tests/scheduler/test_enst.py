"""ENST and the queue below it, against references that are simple enough to be obviously right."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.job import Job
from services.scheduler.policy import POLICIES
from services.scheduler.queue import JobQueue
from services.scheduler.waits import Waits
from shared.ids import JobId
from tests.cores import Cores, create_config, create_submit

OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["append", "append", "remove", "update"]), st.integers(0, 50), st.floats(0, 9)),
    max_size=400,
)


@settings(deadline=None)
@given(OPERATIONS)
def test_queue_sums_equal_a_plain_list(operations: list[tuple[str, int, float]]) -> None:
    queue, plain, number = JobQueue(), list[tuple[Job, float]](), 0
    for action, place, seconds in operations:
        if action == "append":
            job = Job(create_submit(number), None, 0.0)
            number += 1
            queue.append(job, seconds)
            plain.append((job, seconds))
        elif plain:
            index = place % len(plain)
            job = plain[index][0]
            if action == "remove":
                queue.remove(job)
                del plain[index]
            else:
                queue.update(job, seconds)
                plain[index] = (job, seconds)
    assert list(queue) == [job for job, _ in plain] and len(queue) == len(plain)
    assert queue.total == pytest.approx(sum(seconds for _, seconds in plain), abs=1e-6)
    for index, (job, _) in enumerate(plain):
        assert queue.ahead(job) == pytest.approx(sum(seconds for _, seconds in plain[:index]), abs=1e-6)


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 50), st.sampled_from([0.0, 1.0, 7.0])), max_size=80))
def test_the_longest_wait_equals_that_of_a_plain_list(operations: list[tuple[bool, int, float]]) -> None:
    """Waits begin now, or, as an arrival's, some seconds ago."""
    waits, plain = Waits(), list[Job]()
    for number, (leaves, place, ago) in enumerate(operations):
        if leaves and plain:
            waits.discard(plain.pop(place % len(plain)))
        else:
            job = Job(create_submit(number), None, number - ago)
            waits.add(job)
            plain.append(job)
        assert waits.first() is min(plain, key=lambda job: job.waiting_since, default=None)


@settings(max_examples=150, deadline=None)
@given(
    data=st.data(),
    policy=st.sampled_from(["skip-join", "mlfq"]),
    preset=st.sampled_from(["paper-v1", "paper-v3"]),
    count=st.integers(1, 6),
)
def test_enst_and_the_last_holders_equal_a_full_scan(
    data: st.DataObject, policy: str, preset: str, count: int
) -> None:
    batch, alpha = 3, 12.0
    cores = Cores(
        create_config(
            scheduler={"policy": policy, "preset": preset, "max_batch_size": batch, "starvation_s": alpha}
        )
    )
    for number in range(data.draw(st.integers(1, 14))):
        prompt = data.draw(st.sampled_from([5, 10, 30, 90]))
        cores.submit(create_submit(number, prompt=prompt, max_tokens=30, priority=number % 2))
        for _ in range(data.draw(st.integers(0, 3))):
            if cores.plan():
                cores.finish_step()
    if cores.scheduler.unfinished:
        cores.plan()
    now, ruling = cores.clock.now(), cores.scheduler.policy

    share = batch if preset == "paper-v3" else 1
    expected: dict[JobId, float] = {}
    ahead = 0.0
    holders: list[JobId] = []
    for job, enst in ruling.upcoming(now):
        if not job.in_flight:
            promotion = alpha - (now - job.waiting_since)
            expected[job.job_id] = min(promotion, ahead / share)
            assert enst == pytest.approx(expected[job.job_id], abs=1e-6)
            assert ruling.enst(job, now) == pytest.approx(enst, abs=1e-6)
            if job.kv_tokens:
                holders.append(job.job_id)
        ahead += job.quantum - job.used
    largest = sorted((expected[job_id] for job_id in holders), reverse=True)[:count]
    found = ruling.last_holders(count, now)
    assert [enst for _, enst in found] == pytest.approx(largest, abs=1e-6)
    assert all(job.job_id in holders for job, _ in found)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_jobs_in_flight_and_without_kv_are_no_victims(name: str) -> None:
    cores = Cores(create_config(scheduler={"policy": name, "max_batch_size": 2}))
    cores.submit(*(create_submit(number, max_tokens=9, predicted_output=9) for number in range(6)))
    cores.iterate(4)
    cores.plan()
    policy = cores.scheduler.policy
    waiting = {job.job_id for job in policy.ordered() if job.kv_tokens and not job.in_flight}
    assert {job.job_id for job, _ in policy.last_holders(100, cores.clock.now())} == waiting
    for job in list(policy.ordered()):
        policy.dropped(job)
    assert policy.last_holders(100, cores.clock.now()) == []
