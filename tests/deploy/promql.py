"""What the Grafana dashboard and the alert rules ask Prometheus for, taken apart."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser as promql
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana/skipjoin.json").read_text())
RULES: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text())
OF_PROMETHEUS = {"job", "instance"}
"""Labels that a scrape adds."""


class Selector(NamedTuple):
    """labels: those that must be there for the expression to make sense; equal, matching: their values"""

    metric: str
    labels: frozenset[str]
    equal: dict[str, str]
    matching: dict[str, str]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def expressions() -> list[str]:
    of_panels = [target["expr"] for panel in panels() for target in panel["targets"]]
    return [*map(filled_in, of_panels), *(rule["expr"] for rule in rules())]


def filled_in(expression: str) -> str:
    """With values for Grafana's variables."""
    expression = expression.replace("$__rate_interval", "5m").replace("$job", "skipjoin")
    assert "$" not in expression, f"a variable that nobody defines: {expression}"
    return expression


def selectors(expression: str) -> list[Selector]:
    """Raises ValueError for what is no PromQL."""
    return list(_selectors(promql.parse(expression), frozenset()))


def _selectors(node: Any, grouped: frozenset[str]) -> Iterator[Selector]:
    if isinstance(node, promql.VectorSelector):
        by_op: dict[bool, dict[str, str]] = {True: {}, False: {}}
        for matcher in node.matchers.matchers:
            by_op[matcher.op == promql.MatchOp.Equal][matcher.name] = matcher.value
        labels = grouped | by_op[True].keys() | by_op[False].keys()
        yield Selector(node.name, labels - {"le"}, by_op[True], by_op[False])
        return
    if isinstance(node, promql.AggregateExpr) and node.modifier is not None:
        assert node.modifier.type == promql.AggModifierType.By
        grouped = frozenset(node.modifier.labels)
    for child in _children(node):
        yield from _selectors(child, grouped)


def _children(node: Any) -> list[Any]:
    names = ("lhs", "rhs", "expr", "vector_selector")
    found = [getattr(node, name) for name in names if isinstance(getattr(node, name, None), promql.Expr)]
    return found + list(getattr(node, "args", []))


def result_labels(expression: str) -> set[str] | None:
    """Labels of what an expression gives; None: those of its metric."""
    return _result(promql.parse(expression))


def _result(node: Any) -> set[str] | None:
    if isinstance(node, promql.AggregateExpr):
        return set(node.modifier.labels) if node.modifier is not None else set()
    if isinstance(node, promql.BinaryExpr):
        return _result(node.lhs)
    children = [child for child in _children(node) if not isinstance(child, promql.NumberLiteral)]
    return _result(children[-1]) if children else None


def named(template: str) -> set[str]:
    """Labels that a legend ({{stage}}) or an annotation ({{ $labels.stage }}) shows."""
    return set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", template))
