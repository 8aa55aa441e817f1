"""The page /timeline: what is drawn, chosen, linked to and said, over timelines that are made up."""

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from tests.gateway.timeline.browsing import TimelinePage, timeline_page
from tests.gateway.timeline.plays import START_S, forty, thousand

pytestmark = pytest.mark.asyncio(loop_scope="module")
HOSTILE = "<img src=x onerror=alert(1)>/../?a=b&c#\"'"


def request_of(document: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in document["requests"] if each["request_id"] == name)


async def test_what_is_drawn_is_what_was_recorded(page: TimelinePage) -> None:
    await page.open()
    document = page.recorded.document
    width, window = await page.width(), document["end_s"] - document["start_s"]
    drawn = await page.rectangles()
    prefill = "#0072b2"
    seen = [each["request_id"] for each in document["requests"]][:17]
    names = await page.page.locator("#lanes [role=option]").all_text_contents()
    assert names[: len(seen)] == seen  # in order of arrival
    for row, name in enumerate(seen):
        request = request_of(document, name)
        for segment in request["segments"]:
            x = (request["arrived_s"] + segment["start_s"] - document["start_s"]) / window * width
            end = (request["arrived_s"] + segment["end_s"] - document["start_s"]) / window * width
            if segment["state"] != "prefill" or end - x < 1:
                continue
            assert any(
                abs(each["x"] - x) < 1.01
                and abs(each["x"] + each["width"] - end) < 1.01
                and row * 22 <= each["y"] <= row * 22 + 22
                for each in drawn
                if each["colour"] == prefill
            ), (name, segment)
    await expect(page.page.locator("#shown")).to_contain_text("40 requests")


async def test_counters_are_drawn_on_the_same_axis(page: TimelinePage) -> None:
    await page.open()
    ranges = await page.page.locator(".strips span").all_text_contents()
    samples = page.recorded.document["samples"]
    most = {key: max(sample[key] for sample in samples) for key in samples[0]}
    assert ranges == [
        f"max {most['device_used']} of 48", f"max {most['host_used']} of 80", f"max {most['batch']} jobs",
        f"▲out ▼in max {max(most['swap_out_blocks'], most['swap_in_blocks'])}",
    ]  # fmt: skip
    lanes, counters = await page.page.evaluate(
        "['#lanes canvas', '#counters canvas']"
        ".map((each) => document.querySelector(each).getBoundingClientRect())"
        ".map(({ left, width }) => [left, width])"
    )
    assert lanes == counters
    drawn = await page.rectangles("counters")
    assert len(drawn) < 8 * await page.width()


async def test_a_click_shows_who_displaced_it_and_why(page: TimelinePage) -> None:
    await page.open()
    document = page.recorded.document
    request = request_of(document, "req-0009")
    segment = next(
        s for s in request["segments"] if s["state"] == "on_host" and s["end_s"] - s["start_s"] > 1
    )
    middle = (segment["start_s"] + segment["end_s"]) / 2
    await page.click("req-0009", request["arrived_s"] + middle - document["start_s"])
    panel = page.page.get_by_role("complementary", name="Chosen request")
    await expect(panel.get_by_role("heading", name="req-0009")).to_be_visible()
    row = panel.locator("tr.chosen")
    await expect(row).to_contain_text("on host Q4")
    await expect(row).to_contain_text(segment["reason"])
    assert await row.locator("a").all_text_contents() == segment["displaced_by"]
    facts = await panel.locator("dl").inner_text()
    assert (
        f"{request['prompt_tokens']} + {request['output_tokens']}" in facts and request["trace_id"] in facts
    )
    await expect(panel.locator(".segments tbody tr")).to_have_count(len(request["segments"]))
    marked = await page.page.locator(".lane.ahead").all_text_contents()
    assert set(marked) <= set(segment["displaced_by"]) and marked  # those of them that are in sight
    assert page.page.url.endswith("/timeline?request=req-0009")

    other = segment["displaced_by"][0]
    await row.get_by_role("link", name=other).click()
    await expect(panel.get_by_role("heading", name=other)).to_be_visible()
    assert page.page.url.endswith(f"/timeline?request={other}")
    await page.page.go_back()
    await expect(panel.get_by_role("heading", name="req-0009")).to_be_visible()
    await panel.get_by_role("button", name="Close").click()
    await expect(panel).to_be_hidden()
    assert page.page.url.endswith("/timeline")


async def test_the_panel_adds_up(page: TimelinePage) -> None:
    await page.open("?request=req-0016")
    shares = await page.page.locator("[data-part=states] td:nth-child(3)").all_text_contents()
    assert sum(int(share.split()[0]) for share in shares) == pytest.approx(100, abs=len(shares) / 2)
    request = request_of(page.recorded.document, "req-0016")
    promised = f"{len(request['demotions'])}: to Q{request['demotions'][0]['level'] + 1}"
    await expect(page.page.locator("[data-part=facts]")).to_contain_text(promised)


async def test_keys_choose_zoom_and_pan(page: TimelinePage) -> None:
    await page.open()
    await page.page.get_by_role("listbox", name="Requests").focus()
    press = page.page.keyboard.press
    chosen = page.page.locator("[role=option][aria-selected=true]")
    await press("ArrowDown")
    await expect(chosen).to_have_text("req-0000")
    await press("ArrowDown")
    await expect(chosen).to_have_text("req-0001")
    active = await page.page.locator("#lanes").get_attribute("aria-activedescendant")
    assert active == await chosen.get_attribute("id")
    await press("End")
    await expect(chosen).to_have_text("req-0039")
    await expect(chosen).to_be_in_viewport()
    await press("Home")
    await expect(chosen).to_have_text("req-0000")
    whole = await page.axis()
    for _ in range(4):
        await press("+")
    closer = await page.axis()
    assert closer != whole
    await press("ArrowRight")
    assert await page.axis() != closer
    await press("0")
    assert await page.axis() == whole
    await press("Escape")
    await expect(page.page.get_by_role("complementary", name="Chosen request")).to_be_hidden()


async def time_at(page: TimelinePage, share: float) -> float:
    """What the read-out says of a place of the axis, seconds."""
    axis = await page.page.locator("#axis").bounding_box()
    counters = await page.page.locator("#counters").bounding_box()
    assert axis and counters
    await page.page.mouse.move(axis["x"] + share * axis["width"], counters["y"] + 20)
    await page.drawn()
    return float((await page.page.locator("#readout").inner_text()).split()[0])


async def test_wheel_buttons_and_dragging_move_through_time(page: TimelinePage) -> None:
    await page.open()
    window = page.recorded.document["end_s"] - page.recorded.document["start_s"]
    before = await time_at(page, 0.25)
    assert before == pytest.approx(window / 4, abs=0.02)
    await page.page.mouse.wheel(0, -600)
    await page.drawn()
    assert await time_at(page, 0.25) == pytest.approx(before, abs=0.02)
    span = await time_at(page, 0.75) - await time_at(page, 0.25)
    assert span == pytest.approx(window / 2 * 1.0015**-600, rel=0.05)
    await page.page.get_by_role("button", name="Zoom out").click()
    assert await time_at(page, 0.75) - await time_at(page, 0.25) == pytest.approx(span / 0.6, rel=0.05)

    held = await time_at(page, 0.6)
    await page.page.mouse.down()
    axis = await page.page.locator("#axis").bounding_box()
    assert axis
    await page.page.mouse.move(axis["x"] + 0.3 * axis["width"], axis["y"] + 400, steps=5)
    await page.page.mouse.up()
    assert await time_at(page, 0.3) == pytest.approx(held, abs=0.03)
    await expect(page.page.locator("[role=option][aria-selected=true]")).to_have_count(0)  # it was no click

    await page.page.get_by_role("button", name="Fit").click()
    assert await time_at(page, 0.25) == pytest.approx(before, abs=0.02)
    assert "device" in await page.page.locator("#readout").inner_text()


async def test_over_lanes_the_wheel_scrolls_and_with_ctrl_it_zooms(page: TimelinePage) -> None:
    await page.open()
    whole = await page.axis()
    await page.page.locator("#lanes").hover()
    await page.page.mouse.wheel(0, 200)
    await page.page.wait_for_function("() => document.querySelector('#lanes').scrollTop > 0")
    assert await page.axis() == whole
    await page.page.keyboard.down("Control")
    await page.page.mouse.wheel(0, -600)
    await page.page.keyboard.up("Control")
    await page.drawn()
    assert await page.axis() != whole


async def test_a_link_opens_its_request(page: TimelinePage) -> None:
    await page.open("?request=req-0033&seconds=300")
    await expect(page.page.locator("[role=option][aria-selected=true]")).to_have_text("req-0033")
    await expect(page.page.get_by_role("option", name="request req-0033,")).to_be_in_viewport()
    await expect(page.page.get_by_label("Last")).to_have_value("300")
    assert page.recorded.asked == ["/v1/timeline?seconds=300"]
    whole = await page.axis()
    await page.page.get_by_role("button", name="Zoom to it").click()
    assert await page.axis() != whole
    await page.page.reload()
    await expect(page.page.locator("[role=option][aria-selected=true]")).to_have_text("req-0033")


async def test_a_request_that_left_the_window_is_shown_alone(page: TimelinePage) -> None:
    old = request_of(forty(), "req-0008") | {"request_id": HOSTILE}
    choices = [old, old | {"choice": 1, "job": "0000000000000abc"}]
    page.recorded.alone[HOSTILE] = {"request_id": HOSTILE, "choices": choices, "segments": old["segments"]}
    await page.open()
    await page.page.get_by_label("Request", exact=True).fill(HOSTILE)
    await page.page.keyboard.press("Enter")
    options = page.page.locator("[role=option]")
    await expect(options).to_have_text([HOSTILE, f"{HOSTILE} [1]"])
    await expect(page.page.locator("[data-part=name]")).to_have_text(HOSTILE)
    await expect(page.page.locator("#notice")).to_contain_text("is shown alone")
    await expect(page.page.locator("#counters")).to_be_hidden()
    assert await page.page.locator("#plot img, #details img").count() == 0
    await page.page.reload()  # the address holds it all
    await expect(options).to_have_text([HOSTILE, f"{HOSTILE} [1]"])
    await page.page.get_by_role("button", name="Close").click()
    await page.page.get_by_role("button", name="Reload").click()
    await expect(page.page.locator("#shown")).to_contain_text("40 requests")


async def test_hostile_names_and_reasons_are_only_text(page: TimelinePage) -> None:
    request = page.recorded.document["requests"][0]
    request["request_id"] = HOSTILE
    request["segments"][1] |= {"displaced_by": [HOSTILE, "javascript:alert(1)"], "reason": HOSTILE}
    await page.open(f"?request={json.dumps(HOSTILE)}")  # not its name: it is asked for alone, and unknown
    await expect(page.page.get_by_role("alert")).to_contain_text("is known")
    page.complaints.clear()  # the 404
    await page.page.get_by_role("listbox").focus()
    await page.open()
    await page.page.locator("[role=option]").first.click()
    await expect(page.page.locator("[data-part=name]")).to_have_text(HOSTILE)
    links = page.page.locator(".segments a")
    assert await links.nth(0).text_content() == HOSTILE
    for href in await links.evaluate_all("(all) => all.map((each) => each.href)"):
        assert href.startswith(f"{page.url}/timeline?request=")
    assert await page.page.locator("img[src=x]").count() == 0


async def test_an_unknown_request_and_no_connection_are_said(page: TimelinePage) -> None:
    await page.open("?request=nobody")
    alert = page.page.get_by_role("alert")
    await expect(alert).to_contain_text("no request 'nobody' is known")
    await page.open()
    await expect(alert).to_be_hidden()
    await page.page.unroute_all()
    await page.page.route(lambda address: "/v1/" in address, lambda route: route.abort())
    await page.page.get_by_role("button", name="Reload").click()
    await expect(alert).to_contain_text("No connection to the server")
    assert await page.page.locator("[role=option]").count() > 10  # what was known stays
    page.complaints.clear()


async def test_an_empty_window_says_so(page: TimelinePage) -> None:
    page.recorded.document |= {"requests": [], "samples": []}
    await page.open("?seconds=30")
    await expect(page.page.locator("#empty")).to_have_text(
        "No request was unfinished in the last 30 s. Send one, or look further back."
    )
    await expect(page.page.locator(".strips span").first).to_have_text("nothing recorded")
    await page.page.get_by_label("Last").select_option("300")
    await expect(page.page.locator("#empty")).to_contain_text("5 min")
    assert page.recorded.asked == ["/v1/timeline?seconds=30", "/v1/timeline?seconds=300"]
    assert page.page.url.endswith("?seconds=300")


async def test_a_key_is_asked_for_and_sent(page: TimelinePage) -> None:
    page.recorded.key = "secret"
    await page.open()
    await page.page.get_by_label("API key").fill("wrong")
    await page.page.get_by_role("button", name="Show").click()
    await expect(page.page.get_by_role("alert")).to_contain_text("not known here")
    await page.page.get_by_label("API key").fill("secret")
    await page.page.keyboard.press("Enter")
    await expect(page.page.locator("#shown")).to_contain_text("40 requests")
    await expect(page.page.get_by_label("API key")).to_be_hidden()
    page.complaints.clear()


async def test_who_may_not_see_all_sees_a_request_of_their_own(page: TimelinePage) -> None:
    page.recorded.status = 403
    own = request_of(forty(), "req-0003")
    page.recorded.alone["req-0003"] = {
        "request_id": "req-0003",
        "choices": [own],
        "segments": own["segments"],
    }
    await page.open()
    await expect(page.page.get_by_role("alert")).to_contain_text("of your own opens by its id")
    await page.open("?request=req-0003")
    await expect(page.page.locator("[role=option]")).to_have_text(["req-0003"])
    await expect(page.page.get_by_role("alert")).to_be_hidden()
    page.complaints.clear()


async def test_live_asks_again_and_keeps_what_is_chosen(page: TimelinePage) -> None:
    await page.open("?request=req-0005")
    async with page.page.expect_request(lambda request: "/v1/timeline" in request.url):
        await page.page.get_by_label("Live").check()
    late = page.recorded.document
    page.recorded.document = late | {"end_s": late["end_s"] + 2, "requests": late["requests"][:39]}
    await expect(page.page.locator("#shown")).to_contain_text("39 requests")  # without being asked to
    await expect(page.page.locator("[role=option][aria-selected=true]")).to_have_text("req-0005")
    page.recorded.document = late | {"requests": late["requests"][6:]}  # the chosen one has left the window
    await expect(page.page.locator("#shown")).to_contain_text("34 requests")
    await expect(page.page.get_by_role("complementary", name="Chosen request")).to_be_hidden()
    assert not any(path.startswith("/v1/requests/") for path in page.recorded.asked)
    own = request_of(late, "req-0002")
    page.recorded.alone["req-0002"] = {"request_id": "req-0002", "choices": [own]}
    await page.page.get_by_label("Request", exact=True).fill("req-0002")  # that can still be asked for
    await page.page.keyboard.press("Enter")
    await expect(page.page.locator("#shown")).to_have_text("one request")
    await page.page.get_by_label("Live").uncheck()


async def test_a_reload_does_not_disturb_who_reads_the_panel(page: TimelinePage) -> None:
    await page.open()
    request = request_of(page.recorded.document, "req-0009")
    number, segment = max(
        enumerate(request["segments"]), key=lambda each: each[1]["end_s"] - each[1]["start_s"]
    )
    middle = (segment["start_s"] + segment["end_s"]) / 2
    await page.click("req-0009", request["arrived_s"] + middle - page.recorded.document["start_s"])
    link = page.page.locator("tr.chosen a").first
    await link.focus()
    marked = await page.page.locator(".lane.ahead").all_text_contents()
    await page.page.evaluate("document.querySelector('#reload').click()")
    await page.loaded()
    await expect(link).to_be_focused()
    assert await page.page.locator(".lane.ahead").all_text_contents() == marked

    request["segments"][-1]["end_s"] += 1  # it went on: the same segment stays chosen
    request["total_s"] += 1
    await page.page.get_by_role("button", name="Reload").click()
    await expect(page.page.locator("[data-part=facts]")).to_contain_text(f"{request['total_s']:.2f} s")
    await expect(page.page.locator(".segments tbody tr").nth(number)).to_have_class("chosen")


async def test_downloads_are_what_the_api_says(page: TimelinePage, tmp_path: Path) -> None:
    await page.open("?request=req-0007")
    own = request_of(page.recorded.document, "req-0007")
    page.recorded.alone["req-0007"] = {"request_id": "req-0007", "choices": [own]}
    window = page.recorded.document
    for button, name, path, content in (
        ("Download the window as JSON", "skipjoin-timeline.json", "/v1/timeline?seconds=60", window),
        ("Download the window for Perfetto", "skipjoin-timeline.perfetto.json",
         "/v1/timeline?seconds=60&format=perfetto", {"traceEvents": []}),
        ("Download this request as JSON", "skipjoin-req-0007.json", "/v1/requests/req-0007/timeline",
         page.recorded.alone["req-0007"]),
        ("Download this request for Perfetto", "skipjoin-req-0007.perfetto.json",
         "/v1/requests/req-0007/timeline?format=perfetto", {"traceEvents": []}),
    ):  # fmt: skip
        async with page.page.expect_download() as coming:
            await page.page.get_by_role("button", name=button).click()
        download = await coming.value
        await download.save_as(tmp_path / name)
        assert download.suggested_filename == name and page.recorded.asked[-1] == path
        assert json.loads((tmp_path / name).read_text()) == content


async def test_what_the_answer_leaves_out_and_merges_is_said(page: TimelinePage) -> None:
    document = page.recorded.document
    document["limits"]["left_out"] = 3
    document["requests"][0]["segments"][2]["merged"] = 16
    await page.open("?request=req-0000")
    await expect(page.page.locator("#notice")).to_contain_text("3 older requests of this window")
    await expect(page.page.locator(".segments")).to_contain_text("16 such segments in one")


async def test_of_many_segments_those_around_the_chosen_one_are_listed_first(page: TimelinePage) -> None:
    request = page.recorded.document["requests"][0]
    states = ("decode", "preempted")
    parts = [
        request["segments"][1] | {"state": states[i % 2], "start_s": i * 0.05, "end_s": (i + 1) * 0.05}
        for i in range(300)
    ]
    request |= {"segments": parts, "total_s": 15.0}
    await page.open()
    await page.click("req-0000", 14.525)
    rows = page.page.locator(".segments tbody tr")
    await expect(rows).to_have_count(200)
    await expect(page.page.locator("tr.chosen td").first).to_have_text("14.500")
    await page.page.get_by_role("button", name="Show all 300 segments").click()
    await expect(rows).to_have_count(300)


async def test_the_plot_begins_with_the_first_request(page: TimelinePage) -> None:
    """A window of a minute whose first request came after 50 s is no empty plot."""
    page.recorded.document["start_s"] -= 50
    page.recorded.document["requests"][1] |= {"request_id": "req-0000", "choice": 1}
    await page.open()
    first = await time_at(page, 0.001)
    assert first == pytest.approx(50 - (page.recorded.document["end_s"] - START_S) * 0.02, abs=0.1)
    await expect(page.page.locator("#shown")).to_contain_text("39 requests")  # one of them with two answers
    axis = await page.page.locator("#axis").bounding_box()
    assert axis
    await page.page.mouse.down()
    await page.page.mouse.move(axis["x"] + axis["width"] - 5, axis["y"] + 400, steps=3)
    await page.page.mouse.up()
    assert await time_at(page, 0.5) < first  # what came before can be looked at


async def test_pipelines_are_told_apart(page: TimelinePage) -> None:
    document = page.recorded.document
    for request in document["requests"][::2]:
        request["pipeline"] = 1
    await page.open("?request=req-0002")
    field = page.page.get_by_label("Pipeline", exact=True)
    await expect(field).to_have_value("1")  # where the request ran
    await expect(page.page.locator("#shown")).to_contain_text("20 requests")
    await field.select_option("0")
    await expect(page.page.locator("[role=option]").first).to_have_text("req-0001")
    await page.page.get_by_role("button", name="Reload").click()
    await expect(field).to_have_value("0")
    await expect(page.page.locator(".strips span").first).to_contain_text("of 48")


async def test_a_state_that_the_page_does_not_know_is_shown_by_its_name(page: TimelinePage) -> None:
    page.recorded.document["requests"][0]["segments"][1]["state"] = "teleporting"
    await page.open("?request=req-0000")
    await expect(page.page.locator(".segments")).to_contain_text("teleporting")


async def test_a_thousand_requests_cost_what_is_in_sight(chromium: Browser, url: str) -> None:
    size: Any = {"width": 1280, "height": 800}
    async with timeline_page(chromium, url, thousand(), viewport=size) as page:
        await page.open("?seconds=900")
        await expect(page.page.locator("#shown")).to_contain_text("1000 requests")
        options = page.page.locator("[role=option]")
        assert await options.count() <= 25
        assert await options.first.get_attribute("aria-setsize") == "1000"
        assert 0 < len(await page.rectangles()) < 1500
        await page.page.get_by_role("listbox").focus()
        await page.page.keyboard.press("End")
        await expect(page.page.locator("[role=option][aria-selected=true]")).to_have_text("req-0999")
        await expect(page.page.locator("[role=option][aria-selected=true]")).to_be_in_viewport()
        assert await options.count() <= 25
        await page.page.get_by_role("button", name="Zoom to it").click()
        await page.drawn()
        assert int(await options.first.get_attribute("aria-setsize") or 0) <= 40  # those that met it
        assert 0 < len(await page.rectangles()) < 1500
        await expect(page.page.locator("[role=option][aria-selected=true]")).to_be_in_viewport()
        assert page.complaints == []
