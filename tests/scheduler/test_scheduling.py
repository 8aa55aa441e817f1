"""What the scheduler promises, beyond the paper's example."""

from itertools import pairwise

import pytest

from services.scheduler.mlfq import MultiLevelQueue
from services.scheduler.policy import POLICIES
from shared.costmodel import CostModel
from shared.ids import JobId
from shared.messages import FinishReason, Outstanding, Refused
from tests.cores import Cores, create_config, create_submit


def create_cores(**scheduler: object) -> Cores:
    return Cores(create_config(scheduler={"starvation_s": 1e9, **scheduler}))


def order_of_ends(cores: Cores) -> list[int]:
    return sorted(cores.recorder.ends, key=lambda job_id: cores.recorder.ends[job_id][1])


@pytest.mark.parametrize(("policy", "first"), [("skip-join", 2), ("fcfs", 1)])
def test_a_short_request_and_a_long_answer_that_runs(policy: str, first: int) -> None:
    cores = create_cores(policy=policy, max_batch_size=1)
    cores.submit(create_submit(1, max_tokens=200))
    cores.iterate(20)
    cores.submit(create_submit(2, max_tokens=8))
    cores.run()
    assert order_of_ends(cores)[0] == first


def test_preemption_is_at_every_token() -> None:
    """The newcomer runs in the very next iteration, not after a quantum."""
    cores = create_cores(max_batch_size=1)
    cores.submit(create_submit(1, max_tokens=100))
    cores.iterate(10)
    cores.submit(create_submit(2, max_tokens=2))
    cores.plan()
    assert [job.job_id for job in cores.in_flight[0].jobs] == [2]
    assert ("preempted", JobId(1), cores.clock.now()) in cores.recorder.events


def test_a_preempted_job_keeps_its_place_and_a_demoted_one_goes_to_the_tail() -> None:
    cores = create_cores(max_batch_size=1, levels=4)
    policy = cores.scheduler.policy
    cores.submit(*(create_submit(number, prompt=20, max_tokens=50) for number in (1, 2, 3)))  # 2 s: all in Q2
    cores.plan()
    assert [job.job_id for job in policy.ordered()] == [1, 2, 3]
    cores.finish_step()  # 1 has used its 2 s: demoted
    assert [job.job_id for job in policy.ordered()] == [2, 3, 1]
    cores.submit(create_submit(4, prompt=10, max_tokens=1))  # 1 s: Q1, preempts
    cores.plan()
    assert [job.job_id for job in policy.ordered()] == [4, 2, 3, 1]


@pytest.mark.parametrize("policy", ["skip-join", "mlfq", "gittins"])
def test_equal_long_jobs_end_one_after_the_other_in_the_lowest_queue(policy: str) -> None:
    cores = create_cores(policy=policy, max_batch_size=1, levels=3)
    cores.submit(*(create_submit(number, prompt=20, max_tokens=60) for number in (1, 2, 3)))
    cores.iterate(20)
    cores.submit(create_submit(4, prompt=10, max_tokens=1))
    cores.plan()
    assert [job.job_id for job in cores.in_flight[0].jobs] == [4], "who arrives goes first all the same"
    cores.run()
    assert order_of_ends(cores) == [4, 1, 2, 3]
    ends = [cores.recorder.ends[JobId(number)][1] for number in (1, 2, 3)]
    assert ends[0] < ends[1] / 1.5 and ends[1] < ends[2] / 1.3, "they do not take turns"


@pytest.mark.parametrize("policy", ["skip-join", "mlfq"])
def test_with_one_queue_it_is_fcfs(policy: str) -> None:
    ends: list[dict[JobId, tuple[FinishReason, float]]] = []
    for chosen in (policy, "fcfs"):
        cores = create_cores(policy=chosen, max_batch_size=2, levels=1)
        for number, tokens in enumerate((40, 3, 17, 60, 1, 25)):
            cores.submit(create_submit(number, prompt=5 + 10 * number, max_tokens=tokens))
            cores.iterate(4)
        cores.run()
        ends.append(cores.recorder.ends)
    assert ends[0] == ends[1]


def test_skip_join_places_by_the_first_iteration() -> None:
    cores = create_cores(levels=5)
    for number, tokens in enumerate((10, 11, 20, 21, 160, 1000)):
        cores.submit(create_submit(number, prompt=tokens))
    levels = {job.job_id: job.level for job in cores.scheduler.policy.ordered()}
    assert levels == {0: 0, 1: 1, 2: 1, 3: 2, 4: 4, 5: 4}


def test_a_job_that_never_ran_starves_from_its_arrival_and_is_promoted_with_enough_quantum() -> None:
    cores = create_cores(preset="paper-v3", starvation_s=5.0, max_batch_size=1, levels=8)
    cores.submit(create_submit(1, prompt=100))  # 10 s: far down
    arrived = cores.clock.now()
    number = 10
    while ("dispatched", JobId(1), cores.clock.now()) not in cores.recorder.events:
        cores.submit(create_submit(number, prompt=10, max_tokens=1))  # 1 s each, always ahead of it
        number += 1
        cores.plan()
        if any(job.job_id == 1 for job in cores.in_flight[0].jobs):
            break
        cores.finish_step()
        assert cores.clock.now() - arrived < 8.0, "waited longer than alpha and one iteration"
    (job,) = [job for job in cores.scheduler.policy.ordered() if job.job_id == 1]
    assert job.level == 0 and job.quantum >= 10.0


def test_time_waited_at_the_gateway_counts() -> None:
    cores = create_cores(starvation_s=5.0)
    cores.submit(create_submit(1, prompt=100, waited=6.0))
    cores.scheduler.policy.promote(0.0)
    assert [job.level for job in cores.scheduler.policy.ordered()] == [0]


def test_token_budget_leaves_the_second_prompt_out_but_takes_decodes() -> None:
    cores = create_cores(max_batch_tokens=100, policy="fcfs")
    cores.submit(create_submit(1, prompt=10, max_tokens=9))
    cores.plan()
    cores.finish_step()
    cores.submit(create_submit(2, prompt=90), create_submit(3, prompt=90))
    cores.plan()
    assert [job.job_id for job in cores.in_flight[0].jobs] == [1, 2]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_prompts_over_the_token_budget_do_not_wait_for_an_empty_batch(policy: str) -> None:
    """Places in the batch and blocks are free, and the budget bounds only what is prefilled together."""
    cores = create_cores(max_batch_tokens=16, max_batch_size=4, policy=policy)
    cores.submit(create_submit(1, prompt=10, max_tokens=50, predicted_output=50))
    cores.iterate(2)
    cores.submit(*(create_submit(number, prompt=300, max_tokens=9, predicted_output=9) for number in (2, 3)))
    batches: list[list[int]] = []
    for _ in range(6):
        cores.plan()
        prompts = [job.job_id for job in cores.in_flight[0].jobs if len(job.tokens) > 1]
        batches.append(prompts)
        cores.finish_step()
    assert sorted(prompts for prompts in batches if prompts) == [[2], [3]], "one at a time"
    assert len(cores.received[JobId(1)]) > 2, "and others decode beside them"
    cores.run()
    assert len(cores.received[JobId(2)]) == len(cores.received[JobId(3)]) == 9


def test_stop_token_ends_a_job_and_is_reported() -> None:
    cores = create_cores()
    cores.submit(create_submit(1, prompt=10, max_tokens=50, stop=[1012]))
    cores.run()
    assert cores.received[JobId(1)] == [1010, 1011, 1012]
    assert cores.recorder.ends[JobId(1)][0] is FinishReason.STOP


def test_resubmitted_job_goes_on_where_it_was() -> None:
    cores = create_cores()
    cores.received[JobId(1)] = [7, 8]
    cores.submit(create_submit(1, prompt=10, max_tokens=4, output=[7, 8]))
    cores.plan()
    assert cores.in_flight[0].jobs[0].tokens == [*range(10), 7, 8]
    cores.run()
    assert cores.received[JobId(1)] == [7, 8, 1012, 1013]


def test_a_job_submitted_twice_runs_once_and_its_missed_tokens_can_be_had() -> None:
    cores = create_cores()
    submit = create_submit(1, max_tokens=5)
    cores.submit(submit)
    cores.plan()
    cores.finish_step()
    cores.submit(submit)
    assert cores.scheduler.unfinished == 1
    missed = cores.scheduler.tokens_from(JobId(1), 0)
    assert missed is not None and missed.tokens == [1010]
    assert cores.scheduler.tokens_from(JobId(1), 1) is None


@pytest.mark.parametrize(
    "fields", [{"prompt": 0}, {"max_tokens": 0}, {"prompt": 20_000}, {"max_tokens": 20_000}]
)
def test_what_can_never_run_is_refused(fields: dict[str, int]) -> None:
    cores = create_cores()
    answer = cores.scheduler.submit(create_submit(1, **fields), None, 0.0)
    assert isinstance(answer, Refused) and not answer.retryable and answer.param in ("prompt", "max_tokens")


@pytest.mark.parametrize("when", ["queued", "in flight", "preempted"])
def test_abort_in_every_state_returns_everything(when: str) -> None:
    cores = create_cores(max_batch_size=1)
    cores.submit(create_submit(1, max_tokens=50))
    if when != "queued":
        cores.plan()
    if when == "preempted":
        cores.finish_step()
        cores.submit(create_submit(2, max_tokens=3))
        cores.plan()
    cores.scheduler.abort([JobId(1), JobId(99)], cores.clock.now())
    cores.run()
    assert cores.recorder.ends[JobId(1)][0] is FinishReason.ABORT
    assert len(cores.received.get(JobId(1), [])) == (1 if when == "preempted" else 0)


def test_abort_between_plan_and_dispatch_does_not_stall_the_others() -> None:
    cores = create_cores(max_batch_size=1)
    cores.submit(create_submit(1), create_submit(2))
    request = cores.scheduler.plan_request(0.0)
    assert request is not None
    reply = cores.kv.plan(request)
    cores.scheduler.abort([JobId(1)], 0.0)
    assert cores.scheduler.dispatch(reply, 0.0) is None
    cores.run()
    assert len(cores.received[JobId(2)]) == 2


def test_a_failed_step_is_recomputed_once_and_then_told_to_the_client() -> None:
    cores = create_cores()
    cores.submit(create_submit(1, max_tokens=5))
    cores.plan()
    cores.finish_step()
    cores.plan()
    cores.finish_step(error="out of memory")
    cores.plan()
    assert cores.in_flight[0].jobs[0].tokens == [*range(10), 1010], "recomputed from its tokens"
    cores.finish_step(error="out of memory")
    assert cores.recorder.ends[JobId(1)][0] is FinishReason.ERROR
    cores.settle()


def test_a_new_epoch_recomputes_without_losing_or_doubling_a_token() -> None:
    cores = create_cores()
    cores.submit(*(create_submit(number, max_tokens=6) for number in range(5)))
    cores.iterate(3)
    cores.plan()
    late = cores.in_flight.pop()
    cores.scheduler.lose_kv(cores.clock.now())
    cores.kv = type(cores.kv)(create_config().kv, 1)
    cores.run()
    assert late.jobs and all(cores.received[JobId(number)] == list(range(1010, 1016)) for number in range(5))


def test_with_several_batches_in_flight_no_job_is_in_two() -> None:
    cores = Cores(create_config(parallel={"pipeline_stages": 3}, scheduler={"max_batch_size": 8}), copies=3)
    cores.submit(*(create_submit(number, max_tokens=9) for number in range(10)))
    for _ in range(12):
        while cores.plan():
            pass
        flying = [job.job_id for step in cores.in_flight for job in step.jobs]
        assert len(flying) == len(set(flying)) and len(cores.in_flight) == 3
        cores.finish_step()
    cores.run()


def test_priority_classes_are_strict_and_alpha_bounds_waiting_across_them() -> None:
    cores = create_cores(preset="paper-v3", max_batch_size=1, starvation_s=30.0)
    cores.submit(create_submit(1, max_tokens=200, priority=5))
    cores.iterate(3)
    cores.submit(create_submit(2, prompt=100, max_tokens=100, priority=-1))
    for _ in range(20):
        cores.plan()
        assert [job.job_id for job in cores.in_flight[0].jobs] == [2], "however low its queue"
        cores.finish_step()
    for _ in range(10):
        cores.plan()
        if cores.in_flight[0].jobs[0].job_id == 1:
            break
        cores.finish_step()
    else:
        raise AssertionError("the low class starves")


@pytest.mark.parametrize("policy", ["fcfs", "fixed-priority", "srpt"])
def test_ranked_policies_obey_priority_classes_too(policy: str) -> None:
    cores = create_cores(policy=policy, max_batch_size=1)
    cores.submit(create_submit(1, predicted_output=2), create_submit(2, priority=-1, predicted_output=2))
    cores.run()
    assert order_of_ends(cores) == [2, 1]


def test_fixed_priority_runs_the_shortest_prompt_and_keeps_to_it() -> None:
    cores = create_cores(policy="fixed-priority", max_batch_size=1)
    cores.submit(create_submit(1, prompt=30), create_submit(2, prompt=10, max_tokens=20))
    cores.run()
    assert order_of_ends(cores) == [2, 1]


def test_artifact_preset_demotes_one_level_and_keeps_the_used_time_on_promotion() -> None:
    cores = create_cores(preset="artifact", starvation_s=5.0, max_batch_size=1)
    cores.submit(create_submit(1, prompt=100, max_tokens=9))
    (job,) = cores.scheduler.policy.ordered()
    entry = job.level
    cores.plan()
    cores.finish_step()
    assert job.level == entry + (job.used == 0.0)
    used = job.used
    cores.clock.advance(6.0)
    cores.scheduler.policy.promote(cores.clock.now())
    assert job.level == 0 and job.used == used


def test_a_flooding_tenant_does_not_slow_a_quiet_one() -> None:
    """Mean latency of the quiet tenant within 1.5 times that of being alone."""

    def quiet_latency(flood: int) -> float:
        cores = create_cores(policy="fair", max_batch_size=4)
        cores.submit(*(create_submit(100 + n, max_tokens=30, tenant="flood") for n in range(flood)))
        latencies: list[float] = []
        for number in range(10):
            arrived = cores.clock.now()
            cores.submit(create_submit(number, max_tokens=10, tenant="quiet"))
            while number not in cores.recorder.ends:
                cores.plan()
                cores.finish_step()
            latencies.append(cores.clock.now() - arrived)
        return sum(latencies) / len(latencies)

    assert quiet_latency(flood=60) <= 1.5 * quiet_latency(flood=0)


def test_a_tenant_that_was_away_has_earned_no_credit() -> None:
    cores = create_cores(policy="fair", max_batch_size=1)
    cores.submit(create_submit(1, max_tokens=50, tenant="busy"))
    cores.iterate(30)
    cores.submit(create_submit(2, max_tokens=50, tenant="late"))
    turns: list[int] = []
    for _ in range(20):
        cores.plan()
        turns.append(cores.in_flight[0].jobs[0].job_id)
        cores.finish_step()
    assert 6 <= turns.count(1) <= 14


def test_priorities_leave_nothing_behind() -> None:
    cores = create_cores()
    cores.submit(*(create_submit(number, priority=number % 40) for number in range(80)))
    cores.run()
    policy = cores.scheduler.policy
    assert isinstance(policy, MultiLevelQueue)
    assert len(policy._classes) <= 1


@pytest.mark.parametrize("policy", ["random-priority", "markov-priority"])
def test_replayed_priorities_switch_at_their_frequency_and_repeat_with_the_seed(policy: str) -> None:
    def switches(frequency: float, seed: int) -> list[int]:
        cores = create_cores(policy=policy, trace_frequency=frequency, trace_seed=seed, max_batch_size=1)
        cores.submit(*(create_submit(number, max_tokens=200) for number in range(5)))
        order: list[int] = []
        for _ in range(100):
            cores.plan()
            order.append(cores.in_flight[0].jobs[0].job_id)
            cores.finish_step()
        return order

    def count(order: list[int]) -> int:
        return sum(before != after for before, after in pairwise(order))

    assert switches(0.2, seed=1) == switches(0.2, seed=1) != switches(0.2, seed=2)
    assert count(switches(0.01, seed=1)) < count(switches(0.5, seed=1))
    every_tenth = switches(0.1, seed=1)
    places = [place for place, (before, after) in enumerate(pairwise(every_tenth), 2) if before != after]
    assert places and all(place % 10 == 0 for place in places)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_cost_model_of_zeros_does_no_harm(policy: str) -> None:
    cores = create_cores(policy=policy)
    cores.scheduler.set_cost_model(CostModel(0, 0, 0, 0, 0, 0, samples=1))
    cores.submit(*(create_submit(number, predicted_output=2) for number in range(9)))
    cores.run()


def test_a_job_that_comes_back_while_its_step_is_in_flight_is_another_one() -> None:
    """Another pipeline had it in between. The old step's token is not its own, nor may it end it."""
    cores = create_cores()
    cores.submit(create_submit(1, prompt=10, max_tokens=2))
    cores.iterate(1)
    cores.plan()  # its last token is on the way
    cores.scheduler.abort([JobId(1)], cores.clock.now())
    del cores.recorder.ends[JobId(1)]
    cores.submit(create_submit(1, prompt=10, output=[1000], max_tokens=4))
    cores.finish_step()
    assert cores.scheduler.unfinished == 1
    cores.run()
    assert cores.recorder.ends[JobId(1)][0] is FinishReason.LENGTH
    cores.kv.check()


def test_what_is_outstanding_by_receiver() -> None:
    cores = create_cores(max_batch_size=1)
    cores.submit(create_submit(1, prompt=10, max_tokens=5), create_submit(2, prompt=20, max_tokens=7))
    assert cores.scheduler.outstanding() == {"gateway": Outstanding(2, 30, 30, 12)}
    cores.iterate(1)
    assert cores.scheduler.outstanding() == {"gateway": Outstanding(2, 20, 31, 11)}
    cores.run()
    assert cores.scheduler.outstanding() == {}
