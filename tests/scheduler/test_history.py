"""A job can be told why it waited, and what is remembered stays bounded."""

from services.scheduler.history import EVENTS_PER_JOB, FINISHED_KEPT, History
from services.scheduler.job import Job
from shared.ids import JobId
from shared.messages import FinishReason
from shared.messages import JobEventKind as Kind
from tests.cores import Cores, create_config, create_submit


def test_the_story_of_a_job_that_made_way() -> None:
    cores = Cores(create_config(scheduler={"max_batch_size": 1, "starvation_s": 1e9}))
    cores.submit(create_submit(1, prompt=10, max_tokens=9, waited=2.0))
    cores.plan()
    cores.finish_step()  # 1 s in Q1: its quantum is used up
    cores.submit(create_submit(2, prompt=10, max_tokens=1))
    cores.run()
    explanation = cores.scheduler.history.explain(JobId(1))
    assert explanation.found and explanation.forgotten == 0
    story = [(event.kind, event.level, event.other) for event in explanation.events]
    assert story[:5] == [
        (Kind.JOINED, 0, None),
        (Kind.STARTED, 0, None),
        (Kind.DEMOTED, 1, None),
        (Kind.PREEMPTED, 1, 2),
        (Kind.RESUMED, 1, None),
    ]
    assert story[-1][0] is Kind.ENDED
    times = [event.at for event in explanation.events]
    assert times[0] == 2.0 and times == sorted(times)


def test_promotion_and_lost_kv_are_in_it() -> None:
    config = create_config(
        scheduler={"max_batch_size": 1, "starvation_s": 3.0},
        kv={"device_blocks": 4, "host_blocks": 0, "block_size": 16},
    )
    cores = Cores(config)
    cores.submit(create_submit(1, prompt=40, max_tokens=20))
    cores.iterate(3)
    cores.submit(*(create_submit(number, prompt=10, max_tokens=3) for number in range(2, 9)))
    cores.run()
    kinds = [event.kind for event in cores.scheduler.history.explain(JobId(1)).events]
    assert Kind.PROMOTED in kinds and Kind.DROPPED in kinds


def arrived(history: History, number: int, waited: float = 0.0) -> Job:
    """One that comes after so many seconds, on a clock that began at its arrival."""
    job = Job(create_submit(number, waited=waited), None, waited)
    job.level = 2
    history.arrived(job, waited)
    return job


def test_memory_is_bounded_by_events_and_by_jobs() -> None:
    history = History(samples=10, depth=1)
    for number in range(FINISHED_KEPT + 5):
        job = arrived(history, number)
        for _ in range(EVENTS_PER_JOB + 10 if number == FINISHED_KEPT else 1):
            history.preempted(job, 1.0, None)
        history.ended(job, FinishReason.LENGTH, 2.0)
    assert not history.explain(JobId(4)).found and history.explain(JobId(5)).found
    long = history.explain(JobId(FINISHED_KEPT))
    assert len(long.events) == EVENTS_PER_JOB and long.forgotten == 12
    assert len(history._ended) == FINISHED_KEPT and not history._open


def test_counts_and_times_by_state_are_kept_for_all_events() -> None:
    history = History(samples=10, depth=1)
    job = arrived(history, 1, waited=1.0)
    history.begins(job, 3.0)
    for number in range(100):
        history.returns(job, 4.0 + 2 * number)
        history.preempted(job, 4.0 + 2 * number, None)
        history.begins(job, 5.0 + 2 * number)
    known = history.explain(job.job_id, 210.0)
    assert (known.state, known.level) == ("running", 2)
    assert known.counts == {"joined": 1, "started": 1, "preempted": 100, "resumed": 100}
    assert known.seconds == {"waiting": 3.0, "preempted": 100.0, "running": 107.0}
    timeline = history.ended(job, FinishReason.ABORT, 211.0)
    assert timeline.finish == "abort" and timeline.total == 211.0
    ended = history.explain(job.job_id, 500.0)
    assert ended.state == "ended" and ended.seconds["running"] == 108.0
    assert sum(ended.seconds.values()) == 211.0


def test_a_waiting_job_is_told_when_it_should_run() -> None:
    cores = Cores(create_config(scheduler={"max_batch_size": 1, "starvation_s": 1e9}))
    cores.submit(create_submit(1, prompt=10, max_tokens=9), create_submit(2, prompt=10, max_tokens=9))
    cores.plan()
    now = cores.clock.now()
    running, waiting = (cores.scheduler.explain(JobId(number), now) for number in (1, 2))
    assert (running.state, running.enst) == ("running", 0.0)
    assert waiting.state == "waiting" and waiting.enst is not None and waiting.enst > 0
    cores.run()
    assert cores.scheduler.explain(JobId(2), cores.clock.now()).enst is None


def test_those_who_did_not_abort_a_job_are_told() -> None:
    cores = Cores(create_config())
    cores.submit(create_submit(1, prompt=10, max_tokens=9))
    (news,) = cores.scheduler.abort([JobId(1), JobId(99)], 0.0).values()
    assert [(item.job_id, item.finish) for item in news] == [(1, FinishReason.ABORT)]
