"""The page `/board` in a real browser: what it shows, that nothing overlaps, and that it comes back."""

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace
from playwright.async_api import Browser, expect

from services.gateway.pipeline_view import PipelineView
from services.gateway.tokenizer import Tokenizer
from tests.browser import browser
from tests.gateway.boards import LISTED, Pipelines
from tests.gateway.fakes import FakeEngine
from tests.gateway.server import served
from tests.gateway.test_keys import key, ring
from tests.gateway.test_pages import CONTRAST, Opened, opened

pytestmark = pytest.mark.asyncio(loop_scope="module")
expect.set_options(timeout=30_000)

OVERLAPS = """() => {
  const all = Array.from(document.querySelectorAll("body *"));
  const texts = all.filter((element) => element.checkVisibility() &&
    Array.from(element.childNodes).some((node) => node.nodeType === 3 && node.data.trim()));
  const boxes = texts.map((element) => {
    const range = document.createRange();
    range.selectNodeContents(element);
    return range.getBoundingClientRect();
  });
  const found = [];
  boxes.forEach((a, i) => boxes.forEach((b, j) => {
    if (i >= j || texts[i].contains(texts[j]) || texts[j].contains(texts[i])) return;
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (wide > 1 && high > 1) found.push([texts[i].textContent, texts[j].textContent]);
  }));
  const beyond = texts.filter((_, i) => boxes[i].right > document.documentElement.clientWidth + 1);
  return [...found, ...beyond.map((element) => ["beyond the edge", element.textContent])];
}"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium() -> AsyncIterator[Browser]:
    async with browser() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def board(chromium: Browser, engine: FakeEngine, tokenizer: Tokenizer) -> AsyncIterator[Opened]:
    engine.views = Pipelines(20)
    async with served(engine, tokenizer) as url:
        result = await opened(chromium, url, "/board")
        yield result
        await result.page.close()


def queue(board: Opened, number: int) -> Any:
    return board.page.locator(".queue").nth(number - 1)


async def test_queues_blocks_stages_and_rates_are_shown(board: Opened) -> None:
    await expect(board.page.locator("#live")).to_contain_text(re.compile("^live, "))
    await expect(board.page.get_by_label("KV on device")).to_have_attribute(
        "aria-label", "KV on device: 64 %, 614 held, 40 moving, 0 cached, 370 free"
    )
    await expect(board.page.get_by_label("Stage 1 busy")).to_have_attribute(
        "aria-label", "Stage 1 busy: 40 %"
    )
    figures = board.page.locator(".figure")
    await expect(figures.nth(0)).to_contain_text("320")
    await expect(figures.nth(2)).to_contain_text("16.0 of 16")
    await expect(figures.nth(3)).to_contain_text("20")
    await expect(figures.nth(4)).to_contain_text("250 ms · 1.8 s")
    await expect(queue(board, 1)).to_contain_text("2 running · 1 preempted")
    await expect(queue(board, 1).locator(".job").first).to_have_text("1 · 0")
    await expect(figures.nth(0).locator("polyline")).to_have_attribute("points", re.compile(r"(\S+ ){3,}"))
    board.check()


async def test_a_job_moves_to_the_queue_that_it_is_demoted_to(engine: FakeEngine, board: Opened) -> None:
    views = Pipelines(1)
    level = 0

    def demoted() -> list[PipelineView]:
        (view,) = views()
        assert view.scheduler is not None
        queues = view.scheduler.queues
        (job,) = queues[0].jobs
        moved = [
            replace(each, running=int(each.level == level), jobs=[job] if each.level == level else [])
            for each in queues
        ]
        return [view._replace(scheduler=replace(view.scheduler, queues=moved))]

    engine.views = demoted
    await expect(queue(board, 1).locator(".job")).to_have_count(1)
    await expect(board.page.locator(".job[data-job]")).to_have_count(1)
    mark = await board.page.locator(".job[data-job]").element_handle()
    assert mark is not None
    level = 2
    await expect(queue(board, 3).locator(".job")).to_have_count(1)
    assert await mark.evaluate("element => element.closest('.queue').querySelector('.name').textContent") == (
        "Q3200 ms"
    ), "it is the same mark, elsewhere"


async def test_a_thousand_jobs_are_legible(engine: FakeEngine, board: Opened) -> None:
    engine.views = Pipelines(1000)
    await expect(board.page.locator(".figure").nth(3)).to_contain_text("1000")
    for number, shown in ((1, LISTED), (4, 2)):
        await expect(queue(board, number).locator(".job")).to_have_count(shown)
    await expect(queue(board, 1)).to_contain_text("+ 189 more")
    await expect(queue(board, 1)).to_contain_text(re.compile("2.running.· 123.preempted.· 164.waiting"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (420, 800)])
@pytest.mark.parametrize(("jobs", "pipelines"), [(20, 1), (1000, 1), (300, 2)])
async def test_no_label_overlaps_another_and_all_can_be_read(
    engine: FakeEngine, board: Opened, jobs: int, pipelines: int, width: int, height: int, scheme: Any
) -> None:
    engine.views = Pipelines(jobs, pipelines)
    await board.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    await board.page.set_viewport_size({"width": width, "height": height})
    await expect(board.page.locator(".pipeline")).to_have_count(pipelines)
    await expect(board.page.locator(".figure").nth(3)).to_contain_text(str(jobs))
    await queue(board, 1).locator(".job").first.click()
    await expect(board.page.locator("#chosen")).to_be_visible()
    await board.page.evaluate("window.scrollTo(0, 0)")
    assert await board.page.evaluate(OVERLAPS) == []
    assert await board.page.evaluate(CONTRAST) == []


async def test_a_job_is_followed_and_arrow_keys_choose_another(board: Opened) -> None:
    chosen = board.page.locator("#chosen")
    await queue(board, 1).locator(".job").first.click()
    await expect(chosen).to_contain_text("0000000000000001")
    await expect(chosen).to_contain_text("Q1")
    link = chosen.get_by_role("link")
    await expect(link).to_have_attribute("href", "/timeline?request=cmpl-0000000000000001")
    await queue(board, 1).locator(".jobs").focus()
    await board.page.keyboard.press("ArrowRight")
    await expect(chosen).to_contain_text("0000000000000009")
    await expect(board.page.locator(".job.chosen")).to_have_text("9 · 24")


async def test_it_says_when_the_stream_ends_and_comes_back(engine: FakeEngine, board: Opened) -> None:
    live = board.page.locator("#live")
    await expect(live).to_contain_text("live, ")
    engine.draining = True
    await expect(live).to_contain_text("not live: the server has ended the stream; trying again")
    await expect(board.page.locator("#pipelines")).to_have_class("stale")
    engine.draining = False
    await expect(live).to_contain_text(re.compile("^live, "))
    await expect(board.page.locator("#pipelines")).not_to_have_class("stale")
    board.check()


async def test_a_pipeline_that_is_away_says_why(engine: FakeEngine, board: Opened) -> None:
    engine.views = lambda: [PipelineView(0, "no sign of life from the scheduler for more than 5 s")]
    await expect(board.page.locator(".pipeline")).to_contain_text("does not serve: no sign of life")
    board.check()


async def test_a_page_that_nobody_sees_does_not_watch(board: Opened) -> None:
    live = board.page.locator("#live")
    await expect(live).to_contain_text("live, ")
    hide = (
        "Object.defineProperty(document, 'hidden', {value: %s, configurable: true}); "
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    async with board.page.expect_event("requestfailed") as ended:
        await board.page.evaluate(hide % "true")
    assert (await ended.value).url.endswith("/v1/board")
    await expect(live).to_contain_text("paused")
    await board.page.evaluate(hide % "false")
    await expect(live).to_contain_text(re.compile("^live, "))


async def test_an_admin_key_is_asked_for(chromium: Browser, engine: FakeEngine, tokenizer: Tokenizer) -> None:
    engine.views = Pipelines(20)
    keys = ring(key("alice"), key("root", admin=True))
    async with served(engine, tokenizer, keyring=keys) as url:
        board = await opened(chromium, url, "/board")
        field = board.page.get_by_label("API key")
        await field.fill("alice")
        await field.press("Tab")
        await expect(board.page.get_by_role("alert")).to_contain_text("needs an admin key")
        await field.fill("root")
        await field.press("Tab")
        await expect(board.page.locator("#live")).to_contain_text(re.compile("^live, "))
        await expect(field).to_be_hidden()
        board.check("401", "403")
        await board.page.close()


@pytest.mark.parametrize("path", ["/", "/board", "/timeline", "/docs"])
async def test_the_pages_lead_to_each_other(board: Opened, path: str) -> None:
    await board.page.goto(board.url + path)
    links = await board.page.get_by_role("navigation").first.get_by_role("link").all()
    found = {await link.get_attribute("href") for link in links}
    assert {"/", "/board", "/timeline", "/docs"} - {path} <= found
