"""The page /timeline: what of the data becomes which rectangle, label and sum."""

import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.gateway.timeline.browsing import TimelinePage, timeline_page
from tests.gateway.timeline.plays import forty

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def page(chromium: Browser, url: str) -> AsyncIterator[TimelinePage]:
    """One for all tests here, which only call its functions."""
    async with timeline_page(chromium, url, forty()) as opened:
        await opened.open()
        yield opened


_SCALE = "new (await import('/pages/timeline/scale.js')).Scale"
RUNS = f"m.runsOf({{ segments: a[0] }}, {_SCALE}(a[1], a[2], a[3]))"
STEPS = f"m.stepsOf(a[0], {_SCALE}(0, 10, a[1]), (sample) => sample.batch, a[2])"


def segments(*parts: tuple[str, float]) -> list[dict[str, Any]]:
    """One after the other from 0. parts: states and their seconds"""
    ends = list(itertools.accumulate(seconds for _, seconds in parts))
    return [
        {"state": state, "level": 0, "start": end - seconds, "end": end}
        for (state, seconds), end in zip(parts, ends, strict=True)
    ]


async def runs(page: TimelinePage, lane: list[dict[str, Any]], since: float, to: float, width: int) -> Any:
    return await page.call("runs", RUNS, lane, since, to, width)


async def test_segments_are_drawn_where_they_are(page: TimelinePage) -> None:
    lane = segments(("queued", 2), ("prefill", 1), ("decode", 4), ("preempted", 3))
    found = await runs(page, lane, 0, 10, 100)
    assert [(run["state"], run["x"], run["end"]) for run in found] == [
        ("queued", 0, 20), ("prefill", 20, 30), ("decode", 30, 70), ("preempted", 70, 100),
    ]  # fmt: skip
    seen = await runs(page, lane, 2.5, 4.5, 100)
    assert [(run["state"], run["x"], run["end"]) for run in seen] == [("prefill", 0, 25), ("decode", 25, 100)]
    assert await runs(page, lane, 11, 12, 100) == []


async def test_a_pixel_shows_what_takes_most_of_it(page: TimelinePage) -> None:
    """However many segments there are, a lane has at most a rectangle a pixel, none of which overlap."""
    many = segments(*[("decode", 0.002), ("preempted", 0.001)] * 5000)
    found = await runs(page, many, 0, 15, 150)
    assert len(found) <= 150 and {run["state"] for run in found} == {"decode"}
    each = [("decode", 2.5), ("preempted", 0.01), ("swapping_out", 0.02), ("on_host", 3.3)]
    mixed = segments(*each * 400)
    found = await runs(page, mixed, 0, 2332, 777)
    assert len(found) <= 777 and {run["state"] for run in found} == {"decode", "on_host"}
    waits = sum(run["end"] - run["x"] for run in found if run["state"] == "on_host")
    assert waits / 777 == pytest.approx(3.3 / 5.83, abs=0.05)
    assert all(a["end"] <= b["x"] for a, b in itertools.pairwise(found))


async def test_times_in_pixels_add_up_for_real_lanes(page: TimelinePage) -> None:
    """At a pixel a millisecond nothing is lost: rectangles sum to what segments do."""
    for request in forty()["requests"][::4]:
        lane = [
            {"state": s["state"], "level": s["level"], "start": s["start_s"], "end": s["end_s"]}
            for s in request["segments"]
        ]
        total = request["total_s"]
        drawn: dict[str, float] = {}
        for run in await runs(page, lane, 0, total, round(total * 1000)):
            drawn[run["state"]] = drawn.get(run["state"], 0) + run["end"] - run["x"]
        for state in drawn:
            spent = [s["end"] - s["start"] for s in lane if s["state"] == state]
            rounded = 0.001 * len(spent)  # half a pixel at either end
            assert drawn[state] / 1000 == pytest.approx(sum(spent), abs=rounded), (
                request["request_id"],
                state,
            )


@pytest.mark.parametrize("holds", [True, False])
async def test_no_peak_of_a_counter_is_lost(page: TimelinePage, holds: bool) -> None:
    samples = [{"at_s": i * 0.01, "seconds": 0.01, "batch": 9 if i == 555 else i % 3} for i in range(1000)]
    steps = await page.call("samples", STEPS, samples, 50, holds)
    assert len(steps) <= 50 and max(step["value"] for step in steps) == 9
    assert all(a["end"] <= b["x"] for a, b in itertools.pairwise(steps))


async def test_blocks_stay_until_the_next_iteration_and_a_batch_does_not(page: TimelinePage) -> None:
    samples = [{"at_s": at, "seconds": 1, "batch": 3} for at in (0, 5)]
    held = await page.call("samples", STEPS, samples, 10, True)
    momentary = await page.call("samples", STEPS, samples, 10, False)
    merged = await page.call("samples", STEPS, [each | {"iterations": 5} for each in samples], 10, False)
    assert merged == held
    assert [(step["x"], step["end"]) for step in held] == [(0, 10)]
    assert [(step["x"], step["end"]) for step in momentary] == [(0, 1), (5, 6)]


async def test_labels_of_the_axis_are_round_and_apart(page: TimelinePage) -> None:
    expression = "a.map(([from, to]) => m.ticks(new m.Scale(1000 + from, 1000 + to, 900), 1000))"
    spans = [(0, 60), (0, 0.001), (1.2345, 1.2395), (59, 61.5), (0, 7), (0, 3600), (100, 90_000)]
    for (since, to), ticks in zip(spans, await page.call("scale", expression, *spans), strict=True):
        places = [tick["x"] for tick in ticks]
        assert len(ticks) >= 2, (since, to)
        assert all(0 <= x <= 900 for x in places) and all(
            b - a >= 89.9 for a, b in itertools.pairwise(places)
        )
        assert len({tick["label"] for tick in ticks}) == len(ticks), ticks
        for tick in ticks:  # the label is the place, as precisely as it is written
            number, unit = tick["label"].split()
            assert unit == "s"
            at = since + tick["x"] / 900 * (to - since)
            digits = len(number.partition(".")[2])
            assert float(number) == pytest.approx(at, abs=0.51 * 10**-digits)


async def test_zooming_keeps_the_time_under_the_pointer_and_stays_inside(page: TimelinePage) -> None:
    near = await page.call("scale", "m.zoomed([0, 100], 0.5, 80, [0, 100])")
    assert near == [40, 90]
    assert await page.call("scale", "m.zoomed([40, 90], 10, 80, [0, 100])") == [0, 100]
    closest = await page.call("scale", "m.zoomed([40, 90], 1e-9, 80, [0, 100])")
    assert closest[1] - closest[0] == pytest.approx(0.001)
    assert await page.call("scale", "m.panned([40, 90], 50, [0, 100])") == [50, 100]
    assert await page.call("scale", "m.panned([40, 90], -50, [0, 100])") == [0, 50]


async def test_durations_are_written_with_their_unit(page: TimelinePage) -> None:
    written = await page.call("scale", "a.map(m.duration)", 0, 0.00034, 0.0123, 0.5, 4.56, 42.04, 125, 3600)
    assert written == [
        "0.00 ms",
        "340 µs",
        "12.3 ms",
        "500 ms",
        "4.56 s",
        "42.0 s",
        "2 min 5 s",
        "60 min 0 s",
    ]


async def test_who_ran_instead_is_summed_over_waits(page: TimelinePage) -> None:
    lane = {
        "segments": [
            {"state": "queued", "start": 0, "end": 1, "displacedBy": ["a", "b"], "reason": "batch full"},
            {"state": "decode", "start": 1, "end": 2, "displacedBy": [], "reason": None},
            {"state": "preempted", "start": 2, "end": 5, "displacedBy": ["b"], "reason": "batch full"},
        ]
    }
    found = await page.call("summary", "[m.displacers(a[0]), m.reasons(a[0]), m.timeByState(a[0])]", lane)
    assert found[0] == [{"id": "b", "seconds": 4, "times": 2}, {"id": "a", "seconds": 1, "times": 1}]
    assert found[1] == [{"reason": "batch full", "seconds": 4}]
    assert sum(each["seconds"] for each in found[2]) == 5


async def test_the_address_says_what_is_shown(page: TimelinePage) -> None:
    hostile = "a/b?c&d=<img src=x>#é"
    there = await page.call("address", "m.addressOf({ request: a[0], choice: 2, seconds: 300 })", hostile)
    back = await page.call("address", "m.readAddress(new URL(a[0], location).search)", there)
    assert back == {"request": hostile, "choice": 2, "seconds": 300}
    assert await page.call("address", "m.addressOf({ request: null })") == "/timeline"
    nonsense = await page.call("address", "m.readAddress('?seconds=-1&choice=x&request=')")
    assert nonsense == {"request": None, "choice": 0, "seconds": 60}
