"""The metrics page of the whole application: it parses, names follow Prometheus, and nothing stays behind."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from services.gateway.service import GatewayService
from tests.application import Application
from tests.metrics_table import HEADER, MetricRow, rows_of, table
from tests.system.reference import make_prompt

CLIENTS = 200
STAY = {"skipjoin_up", "skipjoin_kv_group_blocks", "skipjoin_stage_ranks", "skipjoin_prefix_cached_blocks",
        "skipjoin_cost_model_relative_error", "skipjoin_kv_fragmentation"}  # fmt: skip
"""Gauges of what is there without any request."""

UNITS = ("seconds", "bytes", "tokens", "blocks", "jobs")
NO_UNITS = ("ms", "milliseconds", "microseconds", "minutes", "kb", "mb", "percent", "count", "total")
AT_REST = ("free", "cached")
"""States of blocks that nobody uses."""
TABLE = Path(__file__).parents[2] / "CONTRIBUTING.md"


async def scraped(app: Application) -> list[Metric]:
    """As Prometheus reads it."""
    answer = await app.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return list(text_string_to_metric_families(answer.text))


async def hang_up(url: str, body: dict[str, Any]) -> None:
    """Ask, and be gone before anything could be answered."""
    host, port = url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
    await writer.drain()
    writer.close()
    await writer.wait_closed()


async def test_after_two_hundred_aborts_every_gauge_is_back_at_zero() -> None:
    """Clients leave before they are accepted, while they wait, and after some tokens."""
    async with Application(kv={"device_blocks": 48, "host_blocks": 64}) as app:

        async def leave(index: int) -> None:
            body = app.completion(make_prompt(index % 20), 100, stream=True, n=1 + index % 2)
            if index % 4 == 0:
                await hang_up(app.url, body)
                return
            async with app.http.stream("POST", "/v1/completions", json=body) as answer:
                lines = answer.aiter_lines()
                for _ in range(index % 4 - 1):
                    await anext(lines)

        leaving = asyncio.gather(*(leave(index) for index in range(CLIENTS)))
        async with asyncio.timeout(300):
            while not any(value for name, value in (await app.metrics()).items() if "skipjoin_jobs{" in name):
                pass
            await leaving
        await app.settled()
        families = await scraped(app)
        gauges = [family for family in families if family.type == "gauge"]
        assert {family.name for family in gauges} >= STAY | {"skipjoin_jobs", "skipjoin_open_requests"}
        assert any(family.samples for family in gauges if family.name == "skipjoin_jobs")
        left_behind = [
            sample
            for family in gauges
            for sample in family.samples
            if family.name not in STAY and sample.labels.get("state") not in AT_REST and sample.value
        ]
        assert left_behind == []
        aborted = sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == "skipjoin_jobs_finished_total" and sample.labels["reason"] == "abort"
        )
        assert aborted >= CLIENTS / 2
        assert len({family.name for family in families}) == len(families), "each family is there once"


async def test_names_follow_prometheus_and_the_table_has_them_all() -> None:
    async with Application(parallel={"pipeline_stages": 2}) as app:
        rows = rows_of(app.services)
        page = {family.name for family in await scraped(app)}
    assert {row.name.removesuffix("_total") for row in rows} == page
    wrong = {row.name: fault for row in rows if (fault := fault_of(row))}
    assert wrong == {}
    text = TABLE.read_text()
    assert table(rows) in text, "python -m tests.metrics_table prints the table that belongs there"
    assert text.count(HEADER) == 1


def fault_of(row: MetricRow) -> str | None:
    """What is against https://prometheus.io/docs/practices/naming/, if anything is."""
    base = row.name.removesuffix("_total")
    words = base.split("_")
    if not re.fullmatch(r"skipjoin(_[a-z]+)+", row.name):
        return "prefix and snake case"
    if (row.type == "counter") != row.name.endswith("_total"):
        return "counters, and only they, end with _total"
    if set(words) & set(NO_UNITS):
        return "base units, and no type in the name"
    if any(unit in words[:-1] for unit in ("seconds", "bytes")):
        return "the unit comes last"
    if row.type == "histogram" and words[-1] not in (*UNITS, "size"):
        return "a histogram has a unit"
    if re.search(r"\b(time|from|between)\b", row.documentation.lower()) and row.type == "histogram":
        return None if words[-1] == "seconds" else "times are in seconds"
    if not (row.documentation[0].isupper() and row.documentation.endswith(".")):
        return "a sentence of documentation"
    if {"le", "pipeline", "gateway"} & set(row.labels):
        return "labels that belong to Prometheus, or to the page"
    return None


async def test_one_scrape_of_any_gateway_has_all_gateways() -> None:
    async with Application() as app:
        second = GatewayService(app.config)
        hellos = await app.gateway.bus.subscribe(app.gateway.bus.subjects.hello("gateway"))
        await second.start()
        try:
            known = {app.gateway.bus.instance, second.bus.instance}
            assert (await app.http.post("/v1/completions", json=app.completion("Hi", 2))).status_code == 200
            async with asyncio.timeout(30):
                while not (app.gateway._engine._gateways.others(app.gateway.clock.now())
                           and second._engine._gateways.others(second.clock.now())):  # fmt: skip
                    await hellos.next()
            first_page = list(text_string_to_metric_families(await app.gateway._engine.metrics()))
            second_page = list(text_string_to_metric_families(await second._engine.metrics()))
        finally:
            await second.stop()
    for page in (first_page, second_page):
        samples = [sample for family in page for sample in family.samples]
        named = [each for each in samples if "gateway" in each.labels]
        up = [each.labels["gateway"] for each in named if each.name == "skipjoin_up"]
        assert sorted(up) == sorted(known) and len(up) == 2
        served = [each for each in samples if each.name == "skipjoin_requests_total"]
        assert [(each.labels["gateway"], each.value) for each in served] == [(app.gateway.bus.instance, 1.0)]
        iterations = [each for each in samples if each.name == "skipjoin_iterations_total"]
        assert len(iterations) == 1, "services are not counted twice"
