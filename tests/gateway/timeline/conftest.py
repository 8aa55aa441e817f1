from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio
from playwright.async_api import Browser, expect

from services.gateway.tokenizer import Tokenizer
from tests.browser import browser
from tests.gateway.fakes import FakeEngine
from tests.gateway.server import served
from tests.gateway.timeline.browsing import TimelinePage, timeline_page
from tests.gateway.timeline.plays import forty

expect.set_options(timeout=30_000)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium() -> AsyncIterator[Browser]:
    async with browser() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(tokenizer: Tokenizer) -> AsyncIterator[str]:
    """Of a gateway's API."""
    async with served(FakeEngine(tokenizer), tokenizer) as address:
        yield address


@pytest_asyncio.fixture(loop_scope="module")
async def page(chromium: Browser, url: str) -> AsyncIterator[TimelinePage]:
    """With 40 requests. It must not have complained of anything, unless a test takes its complaints away."""
    size: Any = {"width": 1280, "height": 800}
    async with timeline_page(chromium, url, forty(), viewport=size) as opened:
        yield opened
        assert opened.complaints == []
