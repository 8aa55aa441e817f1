"""Dashboard and alert rules against the metrics of the running application."""

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from tests.application import Application
from tests.deploy.promql import OF_PROMETHEUS, expressions, selectors

COLLECTED = {"pipeline", "service", "gateway"}
"""Labels that the gateway adds when it collects, where there are several to be told apart."""
IN_TROUBLE = {("outcome", "error")}
"""Labels with values that a healthy run does not have."""


def labels_by_metric(app: Application) -> dict[str, set[str]]:
    """Of every series that a service may have, whether there is one by now or not."""
    found: dict[str, set[str]] = {"skipjoin_up": {"service"}}
    for service in app.services:
        for name, collector in service.registry.collector._names_to_collectors.items():
            found.setdefault(name, set()).update(getattr(collector, "_labelnames", ()))
    return found


async def test_every_metric_and_label_that_is_asked_for_exists() -> None:
    pages: list[str] = []
    async with Application(
        parallel={"pipeline_stages": 2},
        scheduler={"max_batch_size": 2, "starvation_s": 60.0},
        kv={"device_blocks": 16, "host_blocks": 128},
    ) as app:

        async def scrape() -> None:
            pages.append((await app.http.get("/metrics")).text)

        subject = app.gateway.bus.subjects.tokens(app.gateway.bus.instance)
        tokens = await app.gateway.bus.subscribe(subject, depth=4096)
        bodies = [app.completion(f"Once upon a time {number}", 40) for number in range(6)]
        asked = [asyncio.ensure_future(app.http.post("/v1/completions", json=body)) for body in bodies]
        await tokens.next()
        # The others run, and go before it: it waits for as long as it takes to see that.
        last = app.completion("Once upon a time 6", 4, priority=1)
        asked.append(asyncio.ensure_future(app.http.post("/v1/completions", json=last)))
        while not all(each.done() for each in asked):  # without a pause it would starve the stages' threads
            await tokens.next_within(1.0)
            await scrape()
        assert [(await each).status_code for each in asked] == [200] * 7
        refused = await app.http.post("/v1/completions", json=app.completion("x", 0))
        assert refused.status_code == 400
        await app.settled()
        await scrape()
        known = labels_by_metric(app)

    series = [
        (sample.name, sample.labels)
        for page in pages
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    ]
    names = {name for name, _ in series}
    for selector in (each for expression in expressions() for each in selectors(expression)):
        if selector.metric == "up":
            continue  # of Prometheus itself
        quiet = selector.metric.endswith("_total") and selector.metric in known  # nothing to count so far
        assert selector.metric in names or quiet, selector
        assert selector.labels <= known[selector.metric] | COLLECTED | OF_PROMETHEUS, selector
        wanted = {pair for pair in selector.equal.items() if pair[0] not in OF_PROMETHEUS} - IN_TROUBLE
        for pair in wanted:
            assert any(name == selector.metric and pair in own.items() for name, own in series), selector
