"""How long a job may wait: alpha, and how it stretches under overload."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.mlfq import MultiLevelQueue
from shared.messages import JobEventKind
from tests.cores import Cores, create_config, create_submit

POLICIES = ["skip-join", "mlfq", "gittins"]


def waiting_outside_the_first_queue(cores: Cores) -> list[float]:
    """How long they have waited, seconds."""
    now = cores.clock.now()
    jobs = cores.scheduler.policy.ordered()
    return [now - job.waiting_since for job in jobs if not job.in_flight and job.level > 0]


@settings(max_examples=100, deadline=None)
@given(
    data=st.data(),
    policy=st.sampled_from(POLICIES),
    preset=st.sampled_from(["paper-v1", "paper-v3", "artifact", "skipjoin"]),
    batch=st.integers(1, 4),
)
def test_no_job_waits_longer_than_alpha_and_one_iteration_without_promotion(
    data: st.DataObject, policy: str, preset: str, batch: int
) -> None:
    scheduler = {"policy": policy, "preset": preset, "max_batch_size": batch, "starvation_s": 6.0}
    cores = Cores(create_config(scheduler=scheduler))
    ruling = cores.scheduler.policy
    assert isinstance(ruling, MultiLevelQueue)
    for number in range(data.draw(st.integers(1, 12))):
        prompt = data.draw(st.sampled_from([5, 30, 90, 300]))
        cores.submit(create_submit(number, prompt=prompt, max_tokens=data.draw(st.integers(1, 40))))
        for _ in range(data.draw(st.integers(0, 6))):
            before = cores.clock.now()
            if not cores.plan():
                continue
            overdue = [wait for wait in waiting_outside_the_first_queue(cores) if wait > ruling.alpha]
            assert not overdue, "every plan promotes all that are overdue"
            cores.finish_step()
            if preset != "skipjoin":
                iteration = cores.clock.now() - before
                assert max(waiting_outside_the_first_queue(cores), default=0.0) <= 6.0 + iteration
    cores.run()


def promotions(cores: Cores, jobs: int) -> int:
    explained = [cores.scheduler.history.explain(number) for number in range(jobs)]
    return sum(event.kind is JobEventKind.PROMOTED for known in explained for event in known.events)


@pytest.mark.parametrize("policy", POLICIES)
def test_under_overload_promoted_jobs_get_their_share_of_the_batches_and_no_more(policy: str) -> None:
    jobs, batch, share, iterations = 40, 4, 0.1, 400
    scheduler = {"policy": policy, "max_batch_size": batch, "starvation_s": 0.3, "promotion_share": share}
    cores = Cores(create_config(scheduler=scheduler, kv={"device_blocks": 4000}))
    cores.submit(*(create_submit(number, max_tokens=500) for number in range(jobs)))
    cores.iterate(iterations)
    turn = 16  # iterations that the preset gives a promoted job
    assert promotions(cores, jobs) * turn <= 1.2 * share * batch * iterations
    paper = Cores(create_config(scheduler={**scheduler, "preset": "paper-v3", "promotion_share": None}))
    paper.submit(*(create_submit(number, max_tokens=500) for number in range(jobs)))
    paper.iterate(iterations)
    assert promotions(paper, jobs) > iterations, "the paper's alpha fills the batches with promotions"


def test_a_promoted_job_runs_long_enough_to_be_worth_its_swap() -> None:
    cores = Cores(create_config(scheduler={"max_batch_size": 1, "starvation_s": 3.0}))
    cores.submit(create_submit(1, prompt=100, max_tokens=100))  # far down
    cores.submit(*(create_submit(number, prompt=10, max_tokens=100) for number in range(2, 6)))
    runs: list[int] = []
    while len(runs) < 400:
        cores.plan()
        runs.append(cores.in_flight[0].jobs[0].job_id)
        cores.finish_step()
        kinds = [event.kind for event in cores.scheduler.history.explain(1).events]
        if JobEventKind.PROMOTED in kinds and runs.count(1) >= 16:
            break
    first = runs.index(1)
    assert runs[first : first + 7] == [1] * 7, "its prefill of 10 s and then decode iterations of one"
