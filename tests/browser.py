"""A headless Chromium for the tests of the pages."""

import contextlib
import shutil
from collections.abc import AsyncIterator

from playwright.async_api import Browser, async_playwright

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync"]


@contextlib.asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """The system's, or the one that playwright downloaded. Without one the error says what to do."""
    system = next(filter(None, map(shutil.which, _NAMES)), None)
    async with async_playwright() as playwright:
        own = playwright.chromium.executable_path
        assert system or shutil.which(own), (
            "no Chromium for the tests of the pages: `make browser` installs it (apt-get install "
            "chromium-headless-shell, or python -m playwright install chromium)"
        )
        # Without its sandbox, which needs rights that containers do not have: it only sees our own pages.
        running = await playwright.chromium.launch(
            executable_path=system, args=_QUIET, chromium_sandbox=False
        )
        try:
            yield running
        finally:
            await running.close()
