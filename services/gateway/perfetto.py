"""Timelines as a Chrome trace, which ui.perfetto.dev shows: times are microseconds since 1970."""

from collections.abc import Iterable
from typing import Any

from services.gateway.timeline_reports import ChoiceTimeline, ChromeTrace, TimelineSample

_REQUESTS = 1
_PIPELINES = 100
"""Process ids of the tracks: the requests, and each pipeline's counters."""

Event = dict[str, Any]


def chrome_trace(choices: Iterable[ChoiceTimeline], samples: Iterable[TimelineSample] = ()) -> ChromeTrace:
    events = [_named("process_name", _REQUESTS, 0, "requests")]
    for track, choice in enumerate(choices, 1):
        events += _track(choice, track)
    pipelines: set[int] = set()
    for sample in samples:
        if sample.pipeline not in pipelines:
            pipelines.add(sample.pipeline)
            name = f"pipeline {sample.pipeline}"
            events.append(_named("process_name", _PIPELINES + sample.pipeline, 0, name))
        events += _counters(sample)
    return ChromeTrace.model_construct(traceEvents=events, displayTimeUnit="ms")


def _track(choice: ChoiceTimeline, track: int) -> Iterable[Event]:
    name = choice.request_id + (f" #{choice.choice}" if choice.choice else "")
    yield _named("thread_name", _REQUESTS, track, name)
    yield {
        "ph": "M",
        "name": "thread_sort_index",
        "pid": _REQUESTS,
        "tid": track,
        "args": {"sort_index": track},
    }
    for segment in choice.segments:
        start = _microseconds(choice.arrived_s, segment.start_s)
        level = "" if segment.level is None else f" Q{segment.level + 1}"
        yield {
            "ph": "X",
            "name": segment.state + level,
            "cat": segment.state,
            "pid": _REQUESTS,
            "tid": track,
            "ts": start,
            "dur": _microseconds(choice.arrived_s, segment.end_s) - start,
            "args": segment.model_dump(exclude_none=True, exclude={"state", "start_s", "end_s"}),
        }
    marks = [(mark.at_s, f"demoted to Q{mark.level + 1}") for mark in choice.demotions]
    marks += [(mark.at_s, f"promoted to Q{mark.level + 1}") for mark in choice.promotions]
    if choice.first_token_s is not None:
        marks.append((choice.first_token_s, "first token"))
    for at, text in marks:
        ts = _microseconds(choice.arrived_s, at)
        yield {"ph": "i", "s": "t", "name": text, "cat": "mark", "pid": _REQUESTS, "tid": track, "ts": ts}


def _counters(sample: TimelineSample) -> Iterable[Event]:
    for name, values in (
        ("device blocks", {"used": sample.device_used}),
        ("host blocks", {"used": sample.host_used}),
        ("batch", {"jobs": sample.batch}),
        ("waiting", {"jobs": sample.waiting}),
        ("swapped blocks", {"out": sample.swap_out_blocks, "in": sample.swap_in_blocks}),
    ):
        ts = _microseconds(sample.at_s, 0.0)
        yield {
            "ph": "C",
            "name": name,
            "pid": _PIPELINES + sample.pipeline,
            "tid": 0,
            "ts": ts,
            "args": values,
        }


def _named(kind: str, process: int, track: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": track, "args": {"name": name}}


def _microseconds(arrived: float, after: float) -> int:
    return round((arrived + after) * 1e6)
