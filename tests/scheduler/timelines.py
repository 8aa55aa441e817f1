"""What must hold of every timeline, whatever happened."""

from itertools import pairwise

import pytest

from shared.messages import RUNNING, JobState, Timeline

WAITING = frozenset(JobState) - RUNNING - {JobState.GATEWAY, JobState.SENDING}


def check_timeline(timeline: Timeline) -> None:
    """Contiguous from 0 to the total; levels and names where they belong."""
    segments = timeline.segments
    assert not segments or segments[0].start == 0.0
    assert all(before.end == after.start for before, after in pairwise(segments))
    assert all(segment.seconds > 0 or segment.iterations for segment in segments)
    end = segments[-1].end if segments else 0.0
    assert end == pytest.approx(timeline.total, abs=1e-6)
    assert sum(segment.seconds for segment in segments) == pytest.approx(timeline.total, abs=1e-6)
    for segment in segments:
        assert (segment.level is None) == (segment.state is JobState.GATEWAY)
        assert segment.state in WAITING or not segment.displaced_by
        assert f"r{timeline.job_id}" not in segment.displaced_by, "it displaced itself"
        assert segment.state in RUNNING or not segment.iterations


def seconds_in(timeline: Timeline, *states: JobState) -> float:
    return sum(segment.seconds for segment in timeline.segments if segment.state in states)


def check_iterations(timeline: Timeline, spans: list[tuple[float, float]]) -> None:
    """spans: begin and end of each iteration with the job that came back before its end. All that time it is
    in a running state, or comes in for that very iteration.
    """
    begun = sum(segment.iterations for segment in timeline.segments)
    assert begun in (len(spans), len(spans) + 1)  # one more if it was aborted in it
    for began, ended in spans:
        covered = sum(
            max(0.0, min(segment.end, ended) - max(segment.start, began))
            for segment in timeline.segments
            if segment.state in RUNNING or segment.state is JobState.SWAPPING_IN
        )
        assert covered == pytest.approx(ended - began, abs=1e-6)
