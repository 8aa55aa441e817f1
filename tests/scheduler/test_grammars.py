"""What the scheduler sends to the last stage about grammars, and when."""

from array import array

from services.kvcache.core import KVCache
from shared.ids import JobId
from shared.messages import (
    DefineGrammar,
    FinishReason,
    Grammar,
    JobTokens,
    StepJob,
    StepPlan,
    StepResult,
)
from tests.cores import Cores, create_config, create_submit

FIRST, SECOND = Grammar("start: A", [2]), Grammar("start: B", [2])


def step_of(cores: Cores) -> tuple[list[DefineGrammar], StepPlan]:
    """The definitions that go ahead of the next step, and the step."""
    assert cores.plan()
    return cores.scheduler.grammars.take_definitions(), cores.in_flight[-1]


def answer(cores: Cores, **fields: object) -> dict[str, list[JobTokens]]:
    step = cores.in_flight.pop()
    tokens = [20] * len(step.jobs)
    result = StepResult(step.step_id, tokens, [0.1], [0.0], **fields)  # type: ignore[arg-type]
    return cores.scheduler.complete(result, cores.clock.now())


def grammar_of(job: StepJob) -> tuple[int, list[int], list[int]]:
    assert job.grammar is not None and job.history is None
    return job.grammar.grammar_id, array("i", job.grammar.output).tolist(), job.grammar.barred


def test_a_grammar_is_sent_once_and_named_with_the_output_ever_after() -> None:
    cores = Cores(create_config())
    same = create_submit(2, max_tokens=9, grammar=Grammar("start: A", [2]))
    cores.submit(create_submit(1, max_tokens=9, grammar=FIRST), same)
    cores.submit(create_submit(3, max_tokens=9, grammar=SECOND), create_submit(4, max_tokens=9))
    definitions, step = step_of(cores)
    assert [(each.grammar_id, each.grammar) for each in definitions] == [(1, FIRST), (2, SECOND)]
    jobs = {job.job_id: job for job in step.jobs}
    assert [grammar_of(jobs[JobId(i)]) for i in (1, 2, 3)] == [(1, [], []), (1, [], []), (2, [], [])]
    assert jobs[JobId(4)].grammar is None
    answer(cores)
    definitions, step = step_of(cores)
    assert definitions == [] and step.forgotten == []
    assert [grammar_of(job)[1] for job in step.jobs if job.grammar] == [[20]] * 3


def test_min_tokens_bars_within_the_grammar() -> None:
    cores = Cores(create_config())
    cores.submit(create_submit(1, max_tokens=9, grammar=FIRST, min_tokens=1, barred_token_ids=[2]))
    _, step = step_of(cores)
    assert grammar_of(step.jobs[0])[2] == [2]
    answer(cores)
    _, step = step_of(cores)
    assert grammar_of(step.jobs[0])[2] == []


def test_it_is_forgotten_when_its_last_job_has_ended_and_its_number_is_not_used_again() -> None:
    cores = Cores(create_config())
    cores.submit(create_submit(1, max_tokens=1, grammar=FIRST), create_submit(2, max_tokens=2, grammar=FIRST))
    cores.submit(create_submit(3, max_tokens=9))
    step_of(cores)
    answer(cores)
    _, step = step_of(cores)
    assert step.forgotten == []  # job 2 has it
    answer(cores)
    cores.submit(create_submit(4, max_tokens=9, grammar=FIRST))
    definitions, step = step_of(cores)
    assert step.forgotten == [1] and [each.grammar_id for each in definitions] == [2]


def test_an_aborted_job_in_flight_lets_it_go_with_a_later_step() -> None:
    cores = Cores(create_config())
    cores.submit(create_submit(1, max_tokens=9, grammar=FIRST), create_submit(2, max_tokens=9))
    step_of(cores)
    cores.scheduler.abort([JobId(1)], cores.clock.now())
    answer(cores)
    _, step = step_of(cores)
    assert step.forgotten == [1]


def test_after_a_failed_step_and_in_a_new_epoch_it_is_defined_again() -> None:
    config = create_config()
    cores = Cores(config)
    cores.submit(create_submit(1, max_tokens=9, grammar=FIRST))
    step_of(cores)
    answer(cores)
    definitions, _ = step_of(cores)
    assert definitions == []
    answer(cores, error="stage 0: UnknownGrammar")
    definitions, step = step_of(cores)
    assert definitions == [DefineGrammar(1, FIRST)] and grammar_of(step.jobs[0])[1] == [20]
    answer(cores)
    cores.scheduler.lose_kv(cores.clock.now())
    cores.kv = KVCache(config.kv, 1)
    definitions, step = step_of(cores)
    assert definitions == [DefineGrammar(1, FIRST)] and grammar_of(step.jobs[0])[1] == [20, 20]


def test_a_resubmitted_job_goes_on_where_it_was() -> None:
    cores = Cores(create_config())
    cores.submit(create_submit(1, max_tokens=9, grammar=FIRST, output=[7, 8]))
    definitions, step = step_of(cores)
    assert definitions == [DefineGrammar(1, FIRST)] and grammar_of(step.jobs[0])[1] == [7, 8]


def test_a_refused_job_ends_and_the_others_go_on() -> None:
    cores = Cores(create_config())
    cores.submit(create_submit(1, max_tokens=9, grammar=FIRST), create_submit(2, max_tokens=9))
    _, step = step_of(cores)
    refused = ["too complex" if job.job_id == 1 else None for job in step.jobs]
    (items,) = answer(cores, refused=refused).values()
    by_job = {item.job_id: item for item in items}
    assert by_job[JobId(1)] == JobTokens(JobId(1), 0, [], FinishReason.REFUSED, "too complex")
    assert by_job[JobId(2)].tokens == [20]
    assert cores.recorder.ends[JobId(1)][0] is FinishReason.REFUSED
    _, step = step_of(cores)
    assert [job.job_id for job in step.jobs] == [2] and step.forgotten == [1]
    answer(cores)


def test_a_prompt_in_parts_needs_its_grammar_with_the_last_part() -> None:
    config = create_config(scheduler={"chunked_prefill": True, "max_batch_tokens": 8})
    cores = Cores(config)
    cores.submit(create_submit(1, prompt=12, max_tokens=9, grammar=FIRST))
    definitions, step = step_of(cores)
    assert definitions == [] and step.jobs[0].grammar is None
    step = cores.in_flight.pop()
    cores.scheduler.complete(StepResult(step.step_id, [], [0.1], [0.0]), cores.clock.now())
    definitions, step = step_of(cores)
    assert definitions == [DefineGrammar(1, FIRST)] and grammar_of(step.jobs[0]) == (1, [], [])
