"""The page /timeline: labels, contrast, colours, themes, names."""

import re
from typing import Any

import pytest

from tests.gateway.test_pages import CONTRAST
from tests.gateway.timeline.browsing import TimelinePage
from tests.gateway.timeline.colours import VISION, distance

pytestmark = pytest.mark.asyncio(loop_scope="module")

OVERLAPS = """() => {
  const seen = Array.from(document.querySelectorAll(
    "#axis span, #origin, #legend li, .strips p, .tools > *, header.bare > *, h1, #shown, nav a, #theme, " +
    ".lane, #readout, #keys, #details section, #problem, #notice"
  )).filter((each) => each.checkVisibility() && each.textContent.trim());
  const box = (each) => each.getBoundingClientRect();
  const lanes = document.querySelector("#lanes").getBoundingClientRect();
  const hidden = (each) =>
    each.matches(".lane") && (box(each).bottom > lanes.bottom || box(each).top < lanes.top);
  const found = [];
  seen.filter((each) => !hidden(each)).forEach((a, i, all) => all.slice(i + 1).forEach((b) => {
    const [p, q] = [box(a), box(b)];
    const over = Math.min(p.right, q.right) - Math.max(p.left, q.left);
    const down = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
    if (over > 1 && down > 1 && !a.contains(b) && !b.contains(a)) {
      found.push([a.outerHTML.slice(0, 80), b.outerHTML.slice(0, 80)]);
    }
  }));
  const wide = document.documentElement.scrollWidth > innerWidth ? [["wider than the window"]] : [];
  return [...found, ...wide];
}"""


@pytest.mark.parametrize("width", [420, 700, 1280])
@pytest.mark.parametrize("query", ["", "?request=req-0009"])
async def test_nothing_overlaps(page: TimelinePage, width: int, query: str) -> None:
    await page.page.set_viewport_size({"width": width, "height": 800})
    await page.open(query)
    await page.page.mouse.move(width / 2, 400)
    assert await page.page.evaluate(OVERLAPS) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_text_has_contrast(page: TimelinePage, scheme: Any) -> None:
    await page.page.emulate_media(color_scheme=scheme)
    await page.open("?request=req-0009")
    assert await page.page.evaluate(CONTRAST) == []


async def test_everything_can_be_named_and_reached_by_keyboard(page: TimelinePage) -> None:
    await page.open("?request=req-0009")
    unnamed = await page.page.evaluate(
        "Array.from(document.querySelectorAll('input, select, button'))"
        ".filter((each) => each.checkVisibility())"
        ".filter((each) => !(each.labels?.length || each.ariaLabel || each.textContent.trim()))"
        ".map((each) => each.id)"
    )
    assert unnamed == []
    reached = set()
    for _ in range(22):
        await page.page.keyboard.press("Tab")
        reached.add(await page.page.evaluate("document.activeElement.id"))
    assert {"window", "reload", "live", "closer", "all", "request", "json", "lanes", "close"} <= reached


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_states_can_be_told_apart_by_colour_blind_readers(page: TimelinePage, scheme: Any) -> None:
    """Bars of one height and pattern differ in colour, as protan-, deuter- and tritanopic readers see it."""
    await page.page.emulate_media(color_scheme=scheme)
    await page.open()
    colours = await page.page.evaluate(
        "(async () => Array.from(new (await import('/pages/timeline/paint.js'))"
        ".Palette(document.createElement('canvas').getContext('2d')).colours))()"
    )
    states = {each["name"]: each for each in await page.call("states", "m.STATES")}
    looks = {name: tuple(map(int, re.findall(r"\d+", text))) for name, text in colours}
    for kind, matrix in VISION.items():
        for a in states:
            for b in states:
                shapes = [(states[each]["height"], states[each]["pattern"]) for each in (a, b)]
                if a >= b or shapes[0] != shapes[1] or {a, b} == {"gateway", "sending"}:
                    continue
                assert distance(looks[a], looks[b], matrix) > 15, (kind, a, b)
    out, back = (looks[f"swapping_{way}"] for way in ("out", "in"))
    for (
        kind,
        matrix,
    ) in VISION.items():  # the swap traffic has no pattern: above and below the line, and lighter
        assert distance(out, back, matrix) > 10, kind


async def test_colours_follow_the_theme(page: TimelinePage) -> None:
    await page.page.emulate_media(color_scheme="light")
    await page.open()
    light = {each["colour"] for each in await page.rectangles()}
    await page.page.get_by_role("button", name="Switch to the dark theme").click()
    dark = {each["colour"] for each in await page.rectangles()}
    assert light - dark and dark - light
