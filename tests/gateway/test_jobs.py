"""Exactly-once tokens out of at-least-once messages, whatever happens to the scheduler."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from services.gateway.jobs import OpenJob, OpenJobs
from services.gateway.pipelines import Server
from shared.clock import VirtualClock
from shared.ids import Epoch, JobId
from shared.messages import FinishReason, JobTokens, Sampling, Submit, TokenBatch

OLD, NEW = Server(Epoch(1), "old"), Server(Epoch(2), "new")
STOP = FinishReason.STOP


def submit(job_id: int = 1, max_tokens: int = 8) -> Submit:
    return Submit(JobId(job_id), "gateway", [1, 2], max_tokens, Sampling())


def opened(count: int = 1) -> tuple[OpenJobs, list[OpenJob], VirtualClock]:
    clock = VirtualClock()
    jobs = OpenJobs(clock)
    made = [jobs.open(submit(i + 1)) for i in range(count)]
    for job in made:
        jobs.accepted(job.submit.job_id, OLD, OLD)
    return jobs, made, clock


def batch(start: int, tokens: list[int], finish: FinishReason | None = None, job_id: int = 1) -> TokenBatch:
    return TokenBatch([JobTokens(JobId(job_id), start, tokens, finish)])


async def test_waiting_tokens_are_taken_together() -> None:
    jobs, (job,), _ = opened()
    jobs.deliver(batch(0, [10]))
    jobs.deliver(batch(1, [11]))
    assert await job.next() == JobTokens(JobId(1), 0, [10, 11])
    jobs.deliver(batch(2, [12], STOP))
    assert await job.next() == JobTokens(JobId(1), 2, [12], STOP)


def test_known_tokens_are_dropped() -> None:
    jobs, (job,), _ = opened()
    for start, tokens in ((0, [10, 11]), (0, [10]), (1, [11]), (1, [11, 12]), (0, [10, 11])):
        assert not jobs.deliver(batch(start, tokens))
    assert job.output == [10, 11, 12]


def test_a_gap_is_not_papered_over_but_resubmitted_with_the_tokens_so_far() -> None:
    jobs, (job,), clock = opened()
    jobs.deliver(batch(0, [10, 11]))
    clock.advance(1.5)
    assert jobs.deliver(batch(3, [13]))
    (stale,) = jobs.stale()
    again = stale.submission(clock.now())
    assert (again.output, again.waited, again.max_tokens) == ([10, 11], 1.5, 8)
    jobs.accepted(JobId(1), OLD, OLD)
    assert jobs.stale() == []
    jobs.deliver(batch(2, [12, 13]))
    assert job.output == [10, 11, 12, 13]


def test_a_new_scheduler_gets_every_unfinished_job() -> None:
    jobs, _, _ = opened(3)
    jobs.deliver(batch(0, [10], STOP, job_id=1))
    jobs.deliver(batch(0, [10], job_id=2))
    jobs.scheduler_replaced(NEW)
    assert [(again.job_id, again.output) for again in jobs.stale()] == [(2, [10]), (3, [])]


def test_an_epoch_of_the_same_scheduler_changes_nothing() -> None:
    jobs, _, _ = opened()
    jobs.scheduler_replaced(Server(Epoch(5), OLD.instance))
    assert jobs.stale() == []


def test_a_job_taken_by_the_new_scheduler_before_its_hello_is_not_resubmitted() -> None:
    jobs, _, _ = opened()
    jobs.accepted(JobId(1), NEW, OLD)
    jobs.scheduler_replaced(NEW)
    assert jobs.stale() == []


def test_an_acceptance_of_the_old_scheduler_that_comes_late_does_not_count() -> None:
    jobs = OpenJobs(VirtualClock())
    jobs.open(submit())
    jobs.accepted(JobId(1), OLD, NEW)
    assert len(jobs.stale()) == 1


def test_a_lost_message_makes_those_stale_that_may_have_lost_their_end() -> None:
    jobs, _, _ = opened(2)
    seen = batch(0, [10], job_id=1)
    jobs.deliver(seen)
    jobs.message_lost(seen)
    assert [again.job_id for again in jobs.stale()] == [2]


async def test_first_tokens_do_not_wait_for_the_next_ones_of_others() -> None:
    """Handlers go on in the order in which they were woken."""
    jobs, opened_jobs, _ = opened(3)
    for job in opened_jobs[:2]:
        jobs.deliver(batch(0, [10], job_id=job.job_id))
        await job.next()
    order: list[int] = []

    async def handle(job: OpenJob) -> None:
        await job.next()
        order.append(job.job_id)

    handlers = [asyncio.create_task(handle(job)) for job in opened_jobs]
    await asyncio.sleep(0)
    items = [JobTokens(JobId(1), 1, [11]), JobTokens(JobId(2), 1, [11]), JobTokens(JobId(3), 0, [10])]
    jobs.deliver(TokenBatch(items))
    await asyncio.gather(*handlers)
    assert order == [3, 1, 2]


async def test_a_failure_reaches_the_handler() -> None:
    jobs, (job,), _ = opened()
    jobs.deliver(TokenBatch([JobTokens(JobId(1), 5, [], FinishReason.ERROR, "stage 0 died")]))
    item = await job.next()
    assert (item.finish, item.error) == (FinishReason.ERROR, "stage 0 died")


def test_only_what_a_scheduler_may_hold_is_aborted() -> None:
    jobs, _, _ = opened(4)
    jobs.deliver(batch(0, [10], STOP, job_id=1))
    jobs.refuse(JobId(2), "too long")
    assert [jobs.close(JobId(i)) for i in (1, 2, 3)] == [False, False, True]
    jobs.fail_all("shutting down")
    assert jobs.close(JobId(4)) and not jobs.close(JobId(4))
    assert len(jobs) == 0


def test_whoever_takes_a_closed_job_is_told() -> None:
    jobs, _, _ = opened()
    jobs.close(JobId(1))
    assert not jobs.accepted(JobId(1), OLD, OLD)
    assert not jobs.deliver(batch(0, [10]))


answer = list(range(100, 112))
deliveries = st.lists(st.tuples(st.integers(0, len(answer) - 1), st.integers(1, 4)), max_size=20)


@given(deliveries)
def test_any_order_of_messages_gives_a_prefix_and_a_resubmission_completes_it(
    cuts: list[tuple[int, int]],
) -> None:
    jobs, (job,), _ = opened()
    for start, count in cuts:
        tokens = answer[start : start + count]
        jobs.deliver(batch(start, tokens, STOP if start + count >= len(answer) else None))
        assert job.output == answer[: len(job.output)]
        assert (job.finish is STOP) == (len(job.output) == len(answer))
    have = len(job.output)
    jobs.deliver(batch(have, answer[have:], STOP))
    assert job.output == answer
