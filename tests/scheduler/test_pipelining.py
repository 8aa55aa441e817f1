"""Several batches in flight: which goes when, and how busy that keeps the stages."""

import pytest

from services.scheduler.utilisation import Utilisation
from shared.ids import StepId
from tests.cores import Cores, create_config, create_submit


def create_cores(stages: int, jobs: int, **scheduler: object) -> Cores:
    config = create_config(parallel={"pipeline_stages": stages}, scheduler=scheduler)
    cores = Cores(config)
    cores.submit(*(create_submit(number, max_tokens=20) for number in range(1, jobs + 1)))
    return cores


def fill(cores: Cores) -> int:
    """Batches in flight once nothing more can go."""
    while cores.plan():
        pass
    return len(cores.in_flight)


def jobs_in(cores: Cores, index: int) -> list[int]:
    return [job.job_id for job in cores.in_flight[index].jobs]


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_a_batch_for_each_stage_and_no_job_in_two(stages: int) -> None:
    cores = create_cores(stages, jobs=8)
    assert fill(cores) == stages
    flying = [job for index in range(stages) for job in jobs_in(cores, index)]
    assert sorted(flying) == list(range(1, 9)), "the jobs are shared out, none is left over"
    cores.run()


def test_one_more_goes_when_the_first_stage_is_free() -> None:
    cores = create_cores(2, jobs=8, max_batch_size=2)
    assert fill(cores) == 2
    first, second = (step.step_id for step in cores.in_flight)
    cores.scheduler.passed(first)
    assert fill(cores) == 2, "the first stage has the second batch to compute"
    cores.scheduler.passed(second)
    assert fill(cores) == 3
    cores.scheduler.passed(cores.in_flight[2].step_id)
    assert fill(cores) == 3, "only one is ahead"


def test_the_job_that_is_first_when_the_first_stage_frees_goes() -> None:
    """Not the one that was first when the batch before it was planned."""
    cores = create_cores(2, jobs=6, max_batch_size=2)
    fill(cores)
    cores.submit(create_submit(99, priority=-1))
    for step in list(cores.in_flight):
        cores.scheduler.passed(step.step_id)
    fill(cores)
    assert jobs_in(cores, 2)[0] == 99


@pytest.mark.parametrize("wanted", [1, 2, 5])
def test_a_given_bound_is_kept(wanted: int) -> None:
    cores = create_cores(2, jobs=20, max_batch_size=2, batches_in_flight=wanted)
    assert fill(cores) == wanted
    for step in list(cores.in_flight):
        cores.scheduler.passed(step.step_id)
    assert fill(cores) == wanted
    cores.run()


def test_a_new_epoch_frees_the_first_stage() -> None:
    cores = create_cores(2, jobs=8, max_batch_size=2)
    fill(cores)
    cores.scheduler.lose_kv(cores.clock.now())
    assert cores.scheduler.in_flight == 0
    cores.scheduler.passed(StepId(1))  # of before: no harm
    assert cores.scheduler.plan_request(cores.clock.now()) is not None


def test_a_job_ends_with_an_error_only_if_it_fails_again_and_again_without_a_token() -> None:
    cores = create_cores(1, jobs=1)
    for _ in range(5):
        cores.plan()
        cores.finish_step(error="lost on the way")
        cores.iterate(1)
    assert cores.scheduler.unfinished == 1
    for _ in range(2):
        cores.plan()
        cores.finish_step(error="lost on the way")
    assert cores.scheduler.unfinished == 0


def test_busy_and_bubble_of_two_stages() -> None:
    """One batch at a time, 1 s on the first stage and 3 s on the second, then 10 s of nothing to do."""
    use = Utilisation(2)
    for step in range(4):
        began = 14.0 * step
        use.observe(1, began)
        use.observe(0, began + 4)
        use.worked([1.0, 2.5], [0.0, 0.5])
    assert use.active == 16.0
    assert use.busy == [4.0, 12.0]
    assert use.bubble == [12.0, 4.0]


def test_stages_that_overlap_have_no_bubble() -> None:
    use = Utilisation(2)
    for second in range(100):
        use.observe(2, float(second))
        if second >= 2:
            use.worked([1.0, 1.0], [0.0, 0.0])
    assert use.active == 99.0
    assert all(bubble <= 2.0 for bubble in use.bubble), "what is under way does not count yet"
