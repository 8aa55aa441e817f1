"""What a watcher is shown: queues with their first jobs and all counts, at a cost that no queue raises."""

import time

import pytest

from services.scheduler.policy import POLICIES
from services.scheduler.recent import WINDOW_S, RecentJobs, RecentLatency
from services.scheduler.view import LISTED, view_of
from shared.ids import JobId
from shared.messages import SchedulerView
from tests.cores import Cores, create_config, create_submit


def view(cores: Cores, recent: RecentJobs | None = None) -> SchedulerView:
    return view_of(cores.scheduler, recent or RecentJobs(), [0.0], 0, cores.clock.now())


def test_jobs_are_in_their_queues_in_the_order_in_which_they_run() -> None:
    cores = Cores(create_config(scheduler={"max_batch_size": 1, "starvation_s": 1e9}))
    cores.submit(create_submit(1, prompt=10, max_tokens=9, waited=2.0))
    cores.iterate(1)  # 1 s in Q1: demoted
    cores.submit(create_submit(2, prompt=10, max_tokens=9), create_submit(3, prompt=10, priority=-1))
    cores.plan()
    first, second, *others = view(cores).queues
    assert first.quantum < second.quantum and not any(queue.jobs for queue in others)
    assert [(job.job_id, job.state, job.priority) for job in first.jobs] == [
        (3, "running", -1),
        (2, "waiting", 0),
    ]
    assert (first.waiting, first.running, first.preempted) == (1, 1, 0)
    (job,) = second.jobs
    assert (job.job_id, job.state, job.output, job.prompt) == (1, "preempted", 1, 10)
    assert (second.waiting, second.running, second.preempted) == (0, 0, 1)
    assert view(cores).batches == [1]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_shows_all_its_jobs(policy: str) -> None:
    cores = Cores(create_config(scheduler={"policy": policy, "max_batch_size": 2}))
    cores.submit(*(create_submit(number, max_tokens=30, predicted_output=30) for number in range(1, 9)))
    for _ in range(5):
        cores.plan()
        shown = view(cores).queues
        assert sorted(job.job_id for queue in shown for job in queue.jobs) == list(range(1, 9))
        for queue in shown:
            states = [job.state for job in queue.jobs]
            assert queue.running == states.count("running")
            assert queue.waiting + queue.running + queue.preempted == len(states)
        cores.finish_step()


def test_a_hundred_thousand_queued_jobs_cost_no_more_than_a_thousand() -> None:
    def seconds(jobs: int) -> float:
        cores = Cores(create_config(kv={"prefix_reuse": False}))
        cores.submit(*(create_submit(number, prompt=[1]) for number in range(jobs)))
        shown = view(cores)
        assert sum(queue.waiting for queue in shown.queues) == jobs
        assert max(len(queue.jobs) for queue in shown.queues) == LISTED
        times: list[float] = []
        for _ in range(20):
            started = time.perf_counter()
            view(cores)
            times.append(time.perf_counter() - started)
        return min(times)

    assert seconds(100_000) < 5 * seconds(1_000)


def test_latencies_are_those_of_the_last_minute() -> None:
    latency = RecentLatency()
    for _ in range(100):
        latency.observe(9.0, 0.0)
    for number in range(100):
        latency.observe(0.1 if number < 90 else 1.0, 30.0)
    both = latency.summary(31.0)
    assert both.count == 200 and both.p95 == pytest.approx(9.0, rel=0.06)
    late = latency.summary(WINDOW_S + 0.5)
    assert late.count == 100
    assert late.p50 == pytest.approx(0.1, rel=0.06) and late.p95 == pytest.approx(1.0, rel=0.06)
    assert latency.summary(1000.0).count == 0
    assert not latency._seconds, "what is old is forgotten"


def test_tokens_are_timed_from_arrival_and_from_each_other() -> None:
    recent, cores = RecentJobs(), Cores(create_config(scheduler={"max_batch_size": 1}))
    recorder = cores.recorder
    completed, finished = recorder.completed, recorder.finished
    recorder.completed = lambda job, now: (recent.token(job, now), completed(job, now))[1]  # type: ignore
    recorder.finished = lambda job, *rest: (recent.end(job), finished(job, *rest))[1]  # type: ignore
    cores.submit(create_submit(1, prompt=10, max_tokens=3, waited=2.0))
    cores.submit(create_submit(2, max_tokens=5, output=[7, 8]))  # came from another pipeline
    cores.received[JobId(2)] = [7, 8]
    cores.plan()
    (running,) = (job for queue in view(cores, recent).queues for job in queue.jobs if job.job_id == 1)
    assert running.waits == 0.0
    (other,) = (job for queue in view(cores, recent).queues for job in queue.jobs if job.job_id == 2)
    assert other.waits == pytest.approx(cores.clock.now())
    cores.finish_step()
    cores.run()
    shown = view(cores, recent)
    assert (shown.tokens, shown.ended) == (6, 2)
    assert shown.first_token.count == 1 and shown.first_token.p50 == pytest.approx(3.0, rel=0.06)
    assert shown.between_tokens.count == 4  # of 3 tokens two gaps, of the other's 3 own ones two
    assert not recent._last and JobId(1) in recorder.ends
