"""Timelines have no gap and add up, whatever happens; they name who went first; they are bounded."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.iterations import MOST_SAMPLES, Iterations
from services.scheduler.timeline import LEVEL_CHANGES, MAX_SEGMENTS, Track, merged
from shared.ids import JobId, StepId
from shared.messages import Direction, JobState, Occupancy, Segment, Timeline
from tests.cores import Cores, create_config, create_submit
from tests.scheduler.timelines import check_timeline, seconds_in

State = JobState


def nobody(since: float, until: float) -> list[str]:
    return []


def states(timeline: Timeline) -> list[State]:
    return [segment.state for segment in timeline.segments]


def submit(number: int, **fields: object):
    return create_submit(number, request_id=f"r{number}", **fields)  # type: ignore[arg-type]


def test_the_timeline_of_a_job_that_makes_way_and_is_demoted() -> None:
    cores = Cores(create_config(scheduler={"max_batch_size": 1, "starvation_s": 1e9}))
    cores.submit(submit(1, prompt=10, max_tokens=4, waited=2.0))
    cores.iterate(1)  # its prompt, 1 s: its quantum is used up
    cores.submit(submit(2, prompt=10, max_tokens=1))
    cores.run()
    timeline = cores.recorder.timelines[JobId(1)]
    check_timeline(timeline)
    assert states(timeline) == [State.GATEWAY, State.PREFILL, State.PREEMPTED, State.DECODE]
    gateway, prefill, preempted, decode = timeline.segments
    assert (gateway.end, prefill.end, preempted.end, decode.end) == (2.0, 3.0, 4.0, 7.0)
    assert (prefill.level, preempted.level) == (0, 1)
    assert preempted.displaced_by == ["r2"] and (prefill.iterations, decode.iterations) == (1, 3)
    assert timeline.demotions[0].at == 3.0 and timeline.demotions[0].level == 1
    assert (timeline.first_token, timeline.prompt_tokens, timeline.output_tokens) == (3.0, 10, 4)
    assert timeline.finish == "length"


def test_a_wait_names_who_was_running_when_it_began() -> None:
    cores = Cores(create_config(scheduler={"max_batch_size": 1, "policy": "fcfs"}))
    cores.submit(submit(1, prompt=10, max_tokens=3))
    cores.plan()
    cores.submit(submit(2, prompt=10, max_tokens=1))
    cores.finish_step()
    cores.run()
    queued, *_ = cores.recorder.timelines[JobId(2)].segments
    assert (queued.state, queued.displaced_by, queued.end) == (State.QUEUED, ["r1"], 3.0)


class SlowCopies(Cores):
    """Every transfer takes a quarter of a second, the last stage is the last to say so."""

    def finish_transfer(self, transfer_id: int) -> None:
        self.clock.advance(0.25)
        super().finish_transfer(transfer_id)


def test_swaps_are_stamped_when_they_begin_and_when_all_stages_are_done() -> None:
    config = create_config(
        scheduler={"max_batch_size": 1, "starvation_s": 1e9},
        kv={"device_blocks": 4, "host_blocks": 100, "block_size": 4, "reserve_blocks": 0},
    )
    cores = SlowCopies(config, copies=2)
    cores.submit(submit(1, prompt=8, max_tokens=6))
    cores.iterate(2)
    cores.submit(submit(2, prompt=8, max_tokens=6))
    cores.run()
    for number, other in ((1, "r2"), (2, "r1")):
        timeline = cores.recorder.timelines[JobId(number)]
        check_timeline(timeline)
        found = states(timeline)
        out = found.index(State.SWAPPING_OUT)
        assert found[out : out + 4] == [State.SWAPPING_OUT, State.ON_HOST, State.SWAPPING_IN, State.DECODE]
        assert timeline.segments[out].seconds == pytest.approx(0.25)
        assert timeline.segments[out + 1].displaced_by == [other]
        assert found.count(State.PREFILL) == 1 and State.RECOMPUTE not in found


def test_what_is_computed_again_is_told_apart_and_says_why() -> None:
    config = create_config(kv={"swap_mode": "recompute", "device_blocks": 4, "block_size": 4})
    cores = Cores(config)
    cores.submit(*(submit(number, prompt=6, max_tokens=8) for number in range(2)))
    cores.run()
    timelines = [cores.recorder.timelines[JobId(number)] for number in range(2)]
    for timeline in timelines:
        check_timeline(timeline)
        assert states(timeline).count(State.PREFILL) == 1
    again = [each for timeline in timelines for each in timeline.segments if each.state is State.QUEUED]
    assert any(State.RECOMPUTE in states(timeline) for timeline in timelines)
    assert any(each.reason and "dropped" in each.reason for each in again)


def test_a_lost_epoch_and_a_failed_step_are_in_it() -> None:
    cores = Cores(create_config())
    cores.submit(submit(1, prompt=10, max_tokens=4))
    cores.iterate(2)
    cores.plan()
    cores.clock.advance(5.0)
    cores.scheduler.lose_kv(cores.clock.now())
    cores.in_flight.clear()
    cores.kv = type(cores.kv)(create_config().kv, 1)
    cores.clock.advance(1.0)
    cores.plan()
    cores.finish_step(error="boom")
    cores.run()
    timeline = cores.recorder.timelines[JobId(1)]
    check_timeline(timeline)
    assert seconds_in(timeline, State.QUEUED) == 1.0
    assert [segment.state for segment in timeline.segments if segment.reason] == [State.QUEUED]
    assert states(timeline).count(State.RECOMPUTE) >= 1 and states(timeline)[-1] is State.DECODE


def test_a_job_that_another_scheduler_had_is_recomputed() -> None:
    cores = Cores(create_config())
    cores.received[JobId(1)] = [1, 2]
    cores.submit(submit(1, prompt=10, max_tokens=4, output=[1, 2], waited=3.0))
    cores.run()
    assert states(cores.recorder.timelines[JobId(1)]) == [State.GATEWAY, State.RECOMPUTE, State.DECODE]


def test_an_unfinished_job_is_told_of_up_to_now() -> None:
    cores = Cores(create_config(scheduler={"max_batch_size": 1}))
    cores.submit(submit(1, prompt=10, max_tokens=4), submit(2, prompt=10, max_tokens=4))
    cores.plan()
    cores.clock.advance(0.25)
    told, left_out = cores.scheduler.timelines(None, cores.clock.now())
    assert left_out == 0 and [timeline.request_id for timeline in told] == ["r2", "r1"]
    for timeline in told:
        check_timeline(timeline)
        assert timeline.total == 0.25 and timeline.finish is None
    assert [states(timeline) for timeline in told] == [[State.QUEUED], [State.PREFILL]]
    assert cores.scheduler.timelines([JobId(9)], 1.0) == ([], 0)


def test_late_news_of_a_copy_is_of_no_matter_once_the_next_one_has_begun() -> None:
    track = Track(0.0, 0.0, 0, nobody)
    track.begins(decode=False, now=0.0, level=0)
    track.returns(1.0)
    track.moves(Direction.OUT, 2.0, 0)
    track.moves(Direction.IN, 3.0, 0)  # the manager knows that the copy out is complete
    track.begins(decode=True, now=4.0, level=0)
    track.moved(5.0)
    track.returns(6.0)
    assert [(each.state, each.start, each.end) for each in track.segments(6.0)] == [
        (State.PREFILL, 0.0, 1.0),
        (State.PREEMPTED, 1.0, 2.0),
        (State.SWAPPING_OUT, 2.0, 3.0),
        (State.SWAPPING_IN, 3.0, 5.0),
        (State.DECODE, 5.0, 6.0),
    ]


def test_the_segments_of_a_job_are_bounded_and_still_add_up() -> None:
    track = Track(0.0, 0.0, 0, lambda since, until: [f"r{since}"])
    for number in range(5000):
        track.begins(decode=number > 0, now=float(2 * number), level=0)
        track.returns(2 * number + 0.5)
        track.paused(1)
        track.demoted(2 * number + 1.0, 1)
    segments = track.segments(10_000.0)
    timeline = Timeline(JobId(1), "r1", 0, None, 10_000.0, segments)
    check_timeline(timeline)
    assert len(segments) <= MAX_SEGMENTS + 1 and len(track.demotions) == LEVEL_CHANGES
    assert abs(seconds_in(timeline, State.DECODE, State.PREFILL) - 2500.0) < 1e-6
    assert sum(segment.iterations for segment in segments) == 5000
    assert max(segment.merged for segment in segments) > 1 and segments[-1].merged == 1
    assert sum(segment.merged for segment in segments) >= 10_000


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([*JobState]), st.floats(1e-3, 1e3), st.integers(0, 3)),
        min_size=1,
        max_size=200,
    )
)
def test_merging_keeps_the_time_in_each_state(parts: list[tuple[JobState, float, int]]) -> None:
    segments: list[Segment] = []
    for state, seconds, iterations in parts:
        start = segments[-1].end if segments else 0.0
        segments.append(Segment(state, start, start + seconds, 0, iterations))
    fewer = merged(segments)
    assert fewer[0].start == 0.0 and fewer[-1].end == segments[-1].end
    assert all(before.end == after.start for before, after in pairwise(fewer))
    for state in JobState:
        before, after = (
            sum(each.seconds for each in some if each.state is state) for some in (segments, fewer)
        )
        assert abs(before - after) < 1e-6 * segments[-1].end
    assert sum(each.merged for each in fewer) == len(segments)
    assert sum(each.iterations for each in fewer) == sum(each.iterations for each in segments)


def begin(iterations: Iterations, number: int, now: float, job: int = 1) -> None:
    iterations.begun(
        StepId(number),
        now,
        [f"r{job}"],
        tokens=1,
        waiting=number,
        occupancy=Occupancy(number, 9999, 1, 2),
        directives=[],
    )


def test_samples_are_bounded_and_thinned_without_losing_a_peak() -> None:
    iterations = Iterations(kept=3 * MOST_SAMPLES, depth=1)
    for number in range(10 * MOST_SAMPLES):
        begin(iterations, number, float(number))
        iterations.ended(StepId(number), number + 0.5)
    now = 10.0 * MOST_SAMPLES
    recent = iterations.samples(now, 100.0)
    assert [sample.ago for sample in recent] == [float(ago) for ago in range(100, 0, -1)]
    assert {sample.seconds for sample in recent} == {0.5}
    everything = iterations.samples(now, 1e9)
    assert len(everything) == MOST_SAMPLES and len(iterations._log) <= 6 * MOST_SAMPLES
    assert everything[-1].waiting == 10 * MOST_SAMPLES - 1 and everything[0].ago == 3.0 * MOST_SAMPLES
    assert {sample.iterations for sample in recent} == {1}
    assert sum(sample.iterations for sample in everything) == 3 * MOST_SAMPLES


def test_who_ran_meanwhile_is_found_and_only_they() -> None:
    iterations = Iterations(kept=100, depth=1)
    for number in range(10):
        begin(iterations, number, float(number), job=number)
        iterations.ended(StepId(number), number + 1.0)
    assert iterations.ran(3.0, 6.0, "r4", 8) == ["r3", "r5"]
    assert iterations.ran(3.5, 6.0, "", 2) == ["r3", "r4"]
    assert iterations.ran(20.0, 21.0, "", 8) == []
