"""The page /timeline in a browser, over a gateway whose timelines are made up."""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from playwright.async_api import Browser, Page, Route

Rectangle = dict[str, Any]

_RECORD = """
window.rectangles = [];
for (const kind of ["fillRect", "strokeRect"]) {
  const draw = CanvasRenderingContext2D.prototype[kind];
  CanvasRenderingContext2D.prototype[kind] = function (x, y, width, height) {
    if (this.canvas.isConnected) {  // patterns are drawn on others
      const colour = kind === "fillRect" ? this.fillStyle : this.strokeStyle;
      const whose = this.canvas.closest("#lanes, #counters, #legend").id;
      window.rectangles.push({ x, y, width, height, whose, colour: String(colour) });
    }
    return draw.call(this, x, y, width, height);
  };
}
"""
"""What is drawn on canvases, told from outside of the page."""


class Recorded:
    """What the gateway would say; `status` other than 200 refuses the window. asked: paths with queries"""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.alone: dict[str, dict[str, Any]] = {}
        self.status = 200
        self.key: str | None = None
        self.asked: list[str] = []

    async def answer(self, route: Route) -> None:
        url = urlsplit(route.request.url)
        self.asked.append(url.path + (f"?{url.query}" if url.query else ""))
        given = await route.request.header_value("authorization")
        if self.key is not None and given != f"Bearer {self.key}":
            await _refuse(route, 401, "the API key is missing or not known here")
        elif parse_qs(url.query).get("format") == ["perfetto"]:
            await route.fulfill(json={"traceEvents": []})
        elif url.path == "/v1/timeline":
            if self.status == 200:
                await route.fulfill(json=self.document)
            else:
                await _refuse(route, self.status, "the timeline of all is not for everybody")
        else:
            name = unquote(url.path.split("/")[3])
            if name in self.alone:
                await route.fulfill(json=self.alone[name])
            else:
                await _refuse(route, 404, f"id: no request {name!r} is known to this gateway")


async def _refuse(route: Route, status: int, message: str) -> None:
    await route.fulfill(status=status, json={"error": {"message": message}})


class TimelinePage:
    def __init__(self, page: Page, recorded: Recorded, url: str) -> None:
        self.page = page
        self.recorded = recorded
        self.url = url
        self.complaints: list[str] = []
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda said: said.type == "error" and self.complaints.append(said.text))

    async def open(self, query: str = "") -> None:
        await self.page.goto(f"{self.url}/timeline{query}")
        await self.loaded()

    async def loaded(self) -> None:
        """The API has answered, and what it said is drawn."""
        await self.page.wait_for_selector("#plot[aria-busy=false]")
        await self.drawn()

    async def drawn(self) -> None:
        await self.page.evaluate(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    async def rectangles(self, whose: str = "lanes") -> list[Rectangle]:
        """Those of one drawing, asked for now."""
        await self.page.evaluate("window.rectangles = []; window.dispatchEvent(new Event('resize'))")
        await self.page.evaluate("document.querySelector('#lanes').dispatchEvent(new Event('scroll'))")
        await self.drawn()
        found: list[Rectangle] = await self.page.evaluate("window.rectangles")
        return [each for each in found if each["whose"] == whose]

    async def axis(self) -> list[str]:
        await self.drawn()
        return await self.page.locator("#axis span").all_text_contents()

    async def width(self) -> float:
        """Of the plot, pixels."""
        return await self.page.locator("#axis").evaluate("(axis) => axis.clientWidth")

    async def click(self, request: str, at_s: float) -> None:
        """On a request's lane, so many seconds after the window began."""
        row = await self.page.locator(f"[role=option][aria-label^='request {request},']").bounding_box()
        axis = await self.page.locator("#axis").bounding_box()
        assert row and axis
        document = self.recorded.document
        share = at_s / (document["end_s"] - document["start_s"])
        await self.page.mouse.click(axis["x"] + share * axis["width"], row["y"] + row["height"] / 2)

    async def call(self, module: str, expression: str, *arguments: Any) -> Any:
        """The value of an expression over a module `m` of the page and arguments `a`."""
        return await self.page.evaluate(
            f"async (a) => {{ const m = await import('/pages/timeline/{module}.js'); return {expression}; }}",
            json.loads(json.dumps(arguments)),
        )


@contextlib.asynccontextmanager
async def timeline_page(
    chromium: Browser, url: str, document: dict[str, Any], **options: Any
) -> AsyncIterator[TimelinePage]:
    """url: of the gateway's API; options: of the browser's page"""
    recorded = Recorded(document)
    page = await chromium.new_page(**options)
    await page.add_init_script(_RECORD)
    await page.route(lambda address: "/v1/" in address, recorded.answer)
    try:
        yield TimelinePage(page, recorded, url.removesuffix("/v1"))
    finally:
        await page.close()
