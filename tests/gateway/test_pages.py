"""The pages, in a real browser: chat, stop, settings, a request's state, keys, themes, and /docs."""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from services.gateway.tokenizer import Tokenizer
from shared.errors import GenerationFailed, NotReady
from shared.ids import JobId
from shared.messages import Explanation
from tests.browser import browser
from tests.gateway.fakes import FakeEngine, client_of, make_app
from tests.gateway.server import served
from tests.gateway.test_keys import key, ring
from tests.gateway.test_requests_api import preempted

pytestmark = pytest.mark.asyncio(loop_scope="module")
expect.set_options(timeout=30_000)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium() -> AsyncIterator[Browser]:
    async with browser() as running:
        yield running


class Opened:
    """A page over a gateway. `finish` checks that it stayed at home and complained of nothing."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.asked: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda said: said.type == "error" and self.complaints.append(said.text))

    async def say(self, text: str) -> None:
        await self.page.get_by_label("Message", exact=True).fill(text)
        await self.page.keyboard.press("Enter")

    def answer(self, number: int = 0) -> Any:
        return self.page.locator("#turns li.assistant").nth(number)

    def check(self, *expected: str) -> None:
        """expected: what the browser may say besides, of answers that are no success"""
        assert all(url.startswith((self.url, "data:")) for url in self.asked), self.asked
        rest = [text for text in self.complaints if not any(each in text for each in expected)]
        assert rest == []


async def opened(chromium: Browser, url: str, path: str = "/") -> Opened:
    root = url.removesuffix("/v1")
    page = await chromium.new_page()
    result = Opened(page, root)
    await page.goto(root + path)
    return result


@pytest_asyncio.fixture(loop_scope="module")
async def chat(chromium: Browser, engine: FakeEngine, tokenizer: Tokenizer) -> AsyncIterator[Opened]:
    async with served(engine, tokenizer) as url:
        result = await opened(chromium, url)
        await expect(result.page.locator("#model")).to_have_text("tiny")
        yield result
        await result.page.close()


async def test_an_answer_is_streamed_and_the_next_question_has_it(engine: FakeEngine, chat: Opened) -> None:
    gate = asyncio.Event()
    engine.say("héllo 🎉 <img src=x onerror=alert(1)>")
    engine.script.insert(3, gate)
    await chat.say("first")
    await engine.waiting.wait()
    await expect(chat.answer().locator(".said")).to_have_text(re.compile("^h"))
    await expect(chat.page.get_by_role("button", name="Send")).to_be_disabled()
    gate.set()
    await expect(chat.answer().locator(".said")).to_have_text("héllo 🎉 <img src=x onerror=alert(1)>")
    await expect(chat.page.get_by_role("button", name="Send")).to_be_enabled()
    engine.say("second answer")
    await chat.say("second")
    await expect(chat.answer(1).locator(".said")).to_have_text("second answer")
    prompt = engine._tokenizer.decode(engine.submitted[1].prompt)
    assert prompt.startswith("user: first\nassistant: héllo 🎉 <img") and "user: second" in prompt
    await chat.page.get_by_role("button", name="New chat").click()
    await expect(chat.page.locator("#turns li")).to_have_count(0)
    chat.check()


@pytest.mark.parametrize("by", ["button", "key"])
async def test_stop_ends_the_answer_and_its_job(engine: FakeEngine, chat: Opened, by: str) -> None:
    engine.say("hello there")
    engine.script.insert(2, asyncio.Event())
    await chat.say("hi")
    await engine.waiting.wait()
    await expect(chat.answer().locator(".said")).to_have_text(re.compile("^h"))
    if by == "button":
        await chat.page.get_by_role("button", name="Stop").click()
    else:
        await chat.page.keyboard.press("Escape")
    await expect(chat.answer().locator(".note")).to_have_text("stopped")
    await expect(chat.page.get_by_role("button", name="Stop")).to_be_disabled()
    await asyncio.wait_for(engine.abort_seen.wait(), 10)
    engine.say("again")
    await chat.say("more")
    await expect(chat.answer(1).locator(".said")).to_have_text("again")
    chat.check()


async def test_settings_are_sent_and_empty_ones_are_not(engine: FakeEngine, chat: Opened) -> None:
    await chat.say("hi")
    await expect(chat.answer().locator(".said")).to_have_text("hello there")
    for label, value in (
        ("System message", "Be brief."), ("Temperature", "0.3"), ("Max. tokens", "7"),
        ("top_p", "0.5"), ("top_k", "4"), ("Seed", "11"), ("Priority (lower first)", "-2"),
        ("Stop at (a text a line)", "xx\nyy"),
    ):  # fmt: skip
        await chat.page.get_by_label(label).fill(value)
    await chat.say("again")
    await expect(chat.answer(1).locator(".said")).to_have_text("hello there")
    plain, chosen = engine.submitted
    assert (plain.sampling.temperature, plain.sampling.top_k, plain.priority) == (1.0, 0, 0)
    sampling = chosen.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0.3, 0.5, 4, 11)
    assert (chosen.max_tokens, chosen.priority) == (7, -2)
    assert engine._tokenizer.decode(chosen.prompt).startswith("system: Be brief.")
    await chat.page.get_by_label("Temperature").fill("3")  # out of range: nothing is sent
    await chat.say("third")
    assert await chat.page.evaluate("document.activeElement.id") == "temperature"
    assert len(engine.submitted) == 2
    chat.check()


async def test_the_state_of_the_request_is_shown_while_it_waits(engine: FakeEngine, chat: Opened) -> None:
    async def explain(job_id: JobId) -> Explanation:
        return preempted(job_id, 9)

    engine.explain = explain  # type: ignore[method-assign]
    gate = asyncio.Event()
    engine.script.insert(0, gate)
    await chat.say("hi")
    state = chat.page.locator("#state")
    await expect(state).to_contain_text("preempted")
    await expect(state).to_contain_text("Q4")
    await expect(chat.page.locator("#why")).to_contain_text("job 0000000000000009 runs in its place")
    gate.set()
    await expect(chat.answer().locator(".said")).to_have_text("hello there")
    await expect(state).to_contain_text(re.compile(r"\+ [1-9]"))  # the last look has the answer's tokens
    chat.check()


async def test_a_refusal_is_shown_and_the_question_comes_back(engine: FakeEngine, chat: Opened) -> None:
    engine.refusal = NotReady("no scheduler")
    await chat.say("keep me")
    await expect(chat.page.get_by_role("alert")).to_contain_text("no scheduler")
    await expect(chat.page.get_by_label("Message", exact=True)).to_have_value("keep me")
    await expect(chat.page.locator("#turns li")).to_have_count(0)
    engine.refusal = None
    engine.say("ab")
    engine.script.append(GenerationFailed("stage 0 died"))
    await chat.page.get_by_role("button", name="Send").click()
    await expect(chat.page.get_by_role("alert")).to_contain_text("stage 0 died")
    await expect(chat.answer().locator(".note")).to_have_text("not complete")
    chat.check("503")


async def test_a_key_is_asked_for_where_keys_are_on(
    chromium: Browser, engine: FakeEngine, tokenizer: Tokenizer
) -> None:
    async with served(engine, tokenizer, keyring=ring(key("alice"))) as url:
        chat = await opened(chromium, url)
        field = chat.page.get_by_label("API key")
        await expect(field).to_be_visible()
        await field.fill("wrong")
        await field.press("Tab")
        await expect(chat.page.get_by_role("alert")).to_contain_text("not known here")
        await field.fill("alice")
        await field.press("Tab")
        await expect(chat.page.locator("#model")).to_have_text("tiny")
        await chat.say("hi")
        await expect(chat.answer().locator(".said")).to_have_text("hello there")
        await chat.page.reload()
        await expect(chat.page.locator("#model")).to_have_text("tiny")  # kept in this tab
        await chat.page.goto(f"{chat.url}/docs")
        await expect(chat.page.locator(".opblock").first).to_be_visible()
        chat.check("401")
        await chat.page.close()
        other = await opened(chromium, url, "/docs")
        await other.page.get_by_label("API key").fill("alice")
        await other.page.keyboard.press("Enter")
        await expect(other.page.locator(".opblock").first).to_be_visible()
        await other.page.close()


async def test_without_a_key_the_pages_hold_no_secret_and_nothing_else_opens(
    engine: FakeEngine, tokenizer: Tokenizer
) -> None:
    async with served(engine, tokenizer, keyring=ring(key("alice"))) as url, httpx.AsyncClient() as client:
        root = url.removesuffix("/v1")
        for path in (
            "/",
            "/timeline",
            "/docs",
            "/pages/main.js",
            "/pages/timeline/main.js",
            "/swagger/swagger-ui.css",
        ):
            answer = await client.get(root + path)
            assert answer.status_code == 200 and "tiny" not in answer.text, path
            assert answer.headers["x-content-type-options"] == "nosniff"
        for path in ("/pages/%2e%2e/api.py", "/pages/..%2fapi.py", "/pages/nothing.js", "/pages/"):
            assert (await client.get(root + path)).status_code == 404, path
        for path in ("/openapi.json", "/metrics", "/version", "/pages", "//", "/docs/", "/timeline/"):
            assert (await client.get(root + path)).status_code == 401, path
        assert "script-src 'self';" in (await client.get(root)).headers["content-security-policy"]


async def test_everything_can_be_named_and_reached_by_keyboard(chat: Opened) -> None:
    unnamed = await chat.page.evaluate(
        "Array.from(document.querySelectorAll('input, textarea'))"
        ".filter((field) => !field.labels.length).map((field) => field.id)"
    )
    assert unnamed == []
    reached = set()
    for _ in range(25):
        await chat.page.keyboard.press("Tab")
        reached.add(await chat.page.evaluate("document.activeElement.id"))
    assert {"send", "clear", "theme", "temperature", "seed", "system", "turns"} <= reached


async def test_the_theme_is_the_systems_until_one_is_chosen(chat: Opened) -> None:
    def ground() -> Any:
        return chat.page.evaluate("getComputedStyle(document.body).backgroundColor")

    await chat.page.emulate_media(color_scheme="dark")
    await expect(chat.page.locator("html")).to_have_attribute("data-theme", "dark")
    dark = await ground()
    await chat.page.get_by_role("button", name="Switch to the light theme").click()
    assert await ground() != dark
    await chat.page.reload()
    await expect(chat.page.locator("html")).to_have_attribute("data-theme", "light")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_text_has_contrast(engine: FakeEngine, chat: Opened, scheme: Any) -> None:
    """WCAG AA: 4.5 to 1, for every colour of text on the grounds that it is on."""
    await chat.page.emulate_media(color_scheme=scheme)
    await chat.say("hi")
    await expect(chat.answer().locator(".said")).to_have_text("hello there")
    low = await chat.page.evaluate(CONTRAST)
    assert low == []


CONTRAST = """() => {
  const channels = (text) => text.match(/[0-9.]+/g).map(Number);
  const light = (rgb) => rgb.slice(0, 3).map((value) => value / 255)
    .map((value) => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
    .reduce((sum, value, i) => sum + value * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const rgb = channels(getComputedStyle(each).backgroundColor);
      if (rgb.length === 3 || rgb[3] > 0) return rgb;
    }
  };
  return Array.from(document.querySelectorAll("body *")).filter((element) =>
    element.checkVisibility() && !element.disabled &&
    (element.matches("input, textarea") || Array.from(element.childNodes).some((node) =>
      node.nodeType === 3 && node.data.trim()))
  ).filter((element) => {
    const both = [light(channels(getComputedStyle(element).color)), light(ground(element))];
    const [a, b] = both.sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05) < 4.5;
  }).map((element) => element.outerHTML.slice(0, 80));
}"""


async def test_the_api_is_described_without_internet(
    chromium: Browser, engine: FakeEngine, tokenizer: Tokenizer
) -> None:
    async with client_of(make_app(engine, tokenizer)) as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
    async with served(engine, tokenizer) as url:
        docs = await opened(chromium, url, "/docs")
        await expect(docs.page.locator(".opblock")).to_have_count(sum(map(len, paths.values())))
        await docs.page.get_by_text("/version").click()
        await docs.page.get_by_role("button", name="Try it out").click()
        await docs.page.get_by_role("button", name="Execute").click()
        await expect(docs.page.locator(".live-responses-table")).to_contain_text('"version"')
        docs.check()
        await docs.page.close()
