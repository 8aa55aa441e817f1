"""What the scheduler sends and keeps for jobs with penalties, min_tokens and log-probabilities."""

from array import array

from services.kvcache.core import KVCache
from shared.ids import JobId
from shared.messages import (
    JobTokens,
    Sampling,
    StepJob,
    StepPlan,
    StepResult,
    Submit,
    TokenHistory,
    TokenLogprobs,
)
from tests.cores import Cores, create_config

PENALISED = Sampling(temperature=0.0, presence_penalty=1.0, repetition_penalty=1.2, logprobs=1)


def submit(job_id: int = 1, *, output: list[int] | None = None, **fields: object) -> Submit:
    options = {"sampling": PENALISED, "output": output or []} | fields
    return Submit(JobId(job_id), "gateway", [7, 5, 7], 9, **options)  # type: ignore[arg-type]


def ids(packed: bytes) -> list[int]:
    return array("i", packed).tolist()


def step_of(cores: Cores) -> StepPlan:
    assert cores.plan()
    return cores.in_flight[-1]


def answer(cores: Cores, *tokens: int) -> list[JobTokens]:
    """The step in flight comes back with these tokens, each with a log-probability that tells it."""
    step = cores.in_flight.pop()
    scored = [TokenLogprobs(-float(token), [token], [-float(token)]) for token in tokens]
    result = StepResult(step.step_id, list(tokens), [0.1], [0.0], logprobs=scored)
    (items,) = cores.scheduler.complete(result, cores.clock.now()).values()
    return items


def history_of(job: StepJob) -> TokenHistory:
    assert job.history is not None
    return job.history


def test_a_step_carries_the_tokens_so_far_also_after_the_kv_was_lost() -> None:
    config = create_config()
    cores = Cores(config)
    cores.submit(submit())
    (first,) = step_of(cores).jobs
    assert ids(history_of(first).output) == [] and set(ids(history_of(first).seen)) == {5, 7}
    answer(cores, 20)
    step_of(cores)
    answer(cores, 21)
    cores.scheduler.lose_kv(cores.clock.now())  # a stage was restarted
    cores.kv = KVCache(config.kv, 1)
    (again,) = step_of(cores).jobs
    assert again.start == 0 and again.tokens == [7, 5, 7, 20, 21]
    assert ids(history_of(again).output) == [20, 21] and set(ids(history_of(again).seen)) == {5, 7, 20, 21}


def test_a_resubmitted_job_goes_on_with_the_same_history() -> None:
    cores = Cores(create_config())
    cores.submit(submit(output=[20, 21], min_tokens=3, barred_token_ids=[2]))
    (job,) = step_of(cores).jobs
    assert ids(history_of(job).output) == [20, 21] and history_of(job).barred == [2]
    (item,) = answer(cores, 22)
    assert (item.start, item.tokens, item.logprobs) == (2, [22], [TokenLogprobs(-22.0, [22], [-22.0])])
    (later,) = step_of(cores).jobs
    assert history_of(later).barred == []  # min_tokens is reached


def test_missed_tokens_come_with_their_logprobs() -> None:
    cores = Cores(create_config())
    cores.submit(submit(output=[20]))
    for token in (21, 22, 23):
        step_of(cores)
        answer(cores, token)
    missed = cores.scheduler.tokens_from(JobId(1), 2)
    assert missed is not None and missed.tokens == [22, 23]
    assert [scored.logprob for scored in missed.logprobs] == [-22.0, -23.0]


def test_other_jobs_pay_nothing() -> None:
    cores = Cores(create_config())
    plain = Sampling(seed=3, top_p=0.5, logit_bias={1: 2.0}, min_p=0.1, logprobs=3)
    cores.submit(submit(sampling=plain), submit(2, sampling=Sampling(presence_penalty=0.1)))
    jobs = {job.job_id: job for job in step_of(cores).jobs}
    assert jobs[JobId(1)].history is None
    assert history_of(jobs[JobId(2)]) == TokenHistory()  # nothing is repeated: seen stays empty
