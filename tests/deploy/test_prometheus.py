"""deploy/grafana and deploy/prometheus: well-formed, and every expression means what it shows.

tests/system/test_dashboard.py compares them with the metrics of the running application.
"""

import itertools
import re
from typing import Any, Literal

import pytest
import yaml
from pydantic import BaseModel, ConfigDict, Field

from tests.deploy.promql import (
    DASHBOARD,
    DEPLOY,
    OF_PROMETHEUS,
    RULES,
    expressions,
    filled_in,
    named,
    panels,
    result_labels,
    rules,
    selectors,
)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Labels(_Strict):
    severity: Literal["critical", "warning"]


class _Annotations(_Strict):
    summary: str = Field(min_length=10, max_length=120)
    description: str = Field(min_length=60, max_length=400)


class _Rule(_Strict):
    alert: str = Field(pattern="^Skipjoin[A-Z][A-Za-z]+$")
    expr: str
    hold: str = Field(alias="for", pattern="^[0-9]+m$")
    labels: _Labels
    annotations: _Annotations


class _Group(_Strict):
    name: str = Field(pattern="^skipjoin-[a-z]+$")
    rules: list[_Rule] = Field(min_length=1)


class _Rules(_Strict):
    groups: list[_Group]


def test_alert_rules_are_complete_and_named_once() -> None:
    found = [rule for group in _Rules.model_validate(RULES).groups for rule in group.rules]
    assert len({rule.alert for rule in found}) == len(found) >= 15
    assert {rule.labels.severity for rule in found} == {"critical", "warning"}


@pytest.mark.parametrize("expression", expressions())
def test_every_expression_is_promql_over_metrics_of_ours(expression: str) -> None:
    found = selectors(expression)
    assert found
    for selector in found:
        assert selector.metric.startswith("skipjoin_") or selector.metric == "up"
        assert "job" in selector.equal or "job" in selector.matching, "metrics of others are not ours"


@pytest.mark.parametrize("text", ["sum by (le (rate(x[5m]))", "rate(x[5m]", "sum(x{a=b})", ""])
def test_what_is_no_promql_is_noticed(text: str) -> None:
    with pytest.raises(ValueError):
        selectors(text)


def test_counters_are_only_read_as_rates_and_histograms_by_their_bounds() -> None:
    for expression in expressions():
        totals = re.findall(r"skipjoin_\w+_(?:total|bucket|sum|count)\b", expression)
        rated = re.findall(r"(?:rate|increase) ?\((skipjoin_\w+)", expression)
        assert sorted(totals) == sorted(each for each in rated if each in totals), expression
        if "histogram_quantile" in expression:
            assert re.search(r"by \([^)]*\ble\b", expression) and "_bucket" in expression


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_legends_show_labels_that_the_series_have(panel: dict[str, Any]) -> None:
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    for target in panel["targets"]:
        labels = result_labels(filled_in(target["expr"]))
        assert labels is not None, f"{target['expr']}: one series for each process"
        assert named(target["legendFormat"]) == labels - OF_PROMETHEUS - {"le"}, target


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_annotations_show_labels_that_the_alert_has(rule: dict[str, Any]) -> None:
    labels = result_labels(rule["expr"])
    shown = named(rule["annotations"]["summary"]) | named(rule["annotations"]["description"])
    assert labels is None or shown <= labels


def test_the_dashboard_is_laid_out_without_gaps_and_overlaps() -> None:
    every = DASHBOARD["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    assert len({panel["title"] for panel in every}) == len(every)
    for a, b in itertools.combinations([panel["gridPos"] for panel in every], 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        assert beside or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"], (a, b)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in every)


def test_the_dashboard_names_its_data_source_by_a_variable() -> None:
    """So that it can be imported where the data source has another name."""
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert set(re.findall(r"\$\{(\w+)\}", str(DASHBOARD))) <= variables
    for panel in panels():
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)
        assert panel["fieldConfig"]["defaults"]["unit"] in {"s", "short", "reqps", "percentunit", "Bps"}
        assert panel["description"]


def test_the_dashboard_has_what_operators_ask_for() -> None:
    text = " ".join(expressions())
    for metric in (
        "time_to_first_token_seconds_bucket", "inter_token_seconds_bucket", "request_seconds_bucket",
        "requests_total", "jobs{", "kv_blocks{", "swap_out_blocks_total", "swap_in_blocks_total",
        "swap_stall_seconds_total", "stage_step_seconds_sum", "routed_jobs_total", "open_requests{", "up{",
    ):  # fmt: skip
        assert f"skipjoin_{metric}" in text, metric


def test_the_scrape_config_names_the_job_of_the_alerts_and_their_file() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yaml").read_text())
    (scrape,) = config["scrape_configs"]
    assert scrape["metrics_path"] == "/metrics"
    assert [(DEPLOY / "prometheus" / name).name for name in config["rule_files"]] == ["alerts.yaml"]
    for rule in rules():
        assert {selector.equal["job"] for selector in selectors(rule["expr"])} == {scrape["job_name"]}
