"""Tables in Markdown, for a README and for the page."""

from collections.abc import Iterator, Sequence

from loadgen.bench import measure
from loadgen.bench.compare import Ratio
from loadgen.bench.measure import Summary
from loadgen.report.results import Cell, rate_at_limit, targets

Table = list[list[str]]
"""Rows of cells; the first is the head."""

LATE_S = 0.005
"""A client that is later than this, P99, is part of what it measures."""


def markdown(table: Table) -> str:
    head, *rows = table
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def overview(cells: Sequence[Cell]) -> Table:
    """A row per target and rate."""
    kinds = list(dict.fromkeys(kind for cell in cells for kind in measure.by_kind(cell.records)))
    tenants = len({record.tenant for cell in cells for record in cell.records}) > 1
    table: Table = [
        [
            "target",
            "load" if any(cell.load is not None for cell in cells) else "req/s",
            "requests",
            "failed",
            "latency per output token, ms: mean / P95",
            "TTFT, s: mean / P95",
            "TBT, ms: P50 / P99",
            *(f"JCT of {kind}, s: mean / P95" for kind in kinds),
            *([] if kinds else ["JCT, s: mean / P95"]),
            "tokens/s",
            *(["goodput, req/s (share)"] if _has_objective(cells) else []),
            *(["worst ÷ best tenant"] if tenants else []),
        ]
    ]
    for cell in cells:
        all_of = cell.summary()
        by_kind = [cell.summary(kind) for kind in kinds] or [all_of]
        rate = "trace" if cell.rate is None else f"{cell.rate:.3g}"
        table.append(
            [
                cell.target,
                f"{cell.load:g}" if cell.load is not None else rate,
                str(all_of.requests),
                str(all_of.requests - all_of.completed),
                f"{1e3 * all_of.per_token.mean:.0f} / {1e3 * all_of.per_token.p95:.0f}",
                f"{all_of.ttft.mean:.2f} / {all_of.ttft.p95:.2f}",
                f"{1e3 * all_of.tbt.p50:.0f} / {1e3 * all_of.tbt.p99:.0f}",
                *(f"{each.jct.mean:.2f} / {each.jct.p95:.2f}" for each in by_kind),
                f"{all_of.output_rate:.1f}",
                *([f"{all_of.goodput:.2f} ({all_of.met:.0%})"] if _has_objective(cells) else []),
                *(["-" if all_of.fairness is None else f"{all_of.fairness:.2f}"] if tenants else []),
            ]
        )
    return table


def _has_objective(cells: Sequence[Cell]) -> bool:
    return any(getattr(cell.objective, name) is not None for cell in cells for name in _OBJECTIVES)


_OBJECTIVES = ("ttft", "tpot", "per_token", "per_token_iterations")


def details(cell: Cell) -> Table:
    """Spread of each metric, over all and by class; seconds."""
    table: Table = [["", "metric, s", "count", "mean", "P50", "P95", "P99", "P99.9"]]
    kinds = [None, *measure.by_kind(cell.records)]
    for kind in kinds:
        summary = cell.summary(kind)
        for name in ("ttft", "tbt", "tpot", "jct", "per_token"):
            spread = getattr(summary, name)
            values = (spread.mean, spread.p50, spread.p95, spread.p99, spread.p999)
            table.append(
                [kind or "all", NAMES[name], str(spread.count), *(f"{value:.4g}" for value in values)]
            )
    return table


NAMES = {
    "ttft": "TTFT",
    "tbt": "TBT (gaps between chunks)",
    "tpot": "TPOT",
    "jct": "JCT",
    "per_token": "latency per output token",
}


def limits(cells: Sequence[Cell]) -> Table:
    """Where each target reaches the limit of the latency per output token; empty if there is none."""
    rows: Table = []
    unit = "of capacity" if any(cell.load is not None for cell in cells) else "req/s"
    for target, mine in targets(cells).items():
        limit = mine[0].limit
        if limit is None:
            continue
        reached = rate_at_limit(mine)
        above = mine[0].summary().per_token.mean > limit
        text = f"{reached:.2f}" if reached is not None else _beyond(mine, above)
        rows.append([target, f"{1e3 * limit:.0f}", text])
    head = ["target", "limit of the mean latency per output token, ms", f"reached at, {unit}"]
    return [head, *rows] if rows else []


def _beyond(cells: Sequence[Cell], above: bool) -> str:
    return f"below {cells[0].x:g}" if above else f"above {cells[-1].x:g}"


def compared(found: Sequence[Ratio], a: str, b: str) -> Table:
    """b against a."""
    table: Table = [["metric", "of", "requests", a, b, f"{b} ÷ {a}", "95 % interval"]]
    for item in found:
        interval = "-" if item.low != item.low else f"{item.low:.2f} to {item.high:.2f}"
        name = NAMES.get(item.metric, item.metric)
        unit = "" if item.metric not in NAMES else ", s"
        table.append(
            [
                f"{name}{unit}, {item.statistic}",
                item.kind or "all",
                str(item.requests),
                f"{item.a:.4g}",
                f"{item.b:.4g}",
                f"{item.ratio:.2f}",
                interval,
            ]
        )
    return table


def warnings(cells: Sequence[Cell]) -> Iterator[str]:
    """What a reader must know before believing the figures."""
    for cell in cells:
        summary = cell.summary()
        for what, count in sorted(summary.failures.items()):
            yield f"{cell.name}: {count} of {summary.requests} requests failed: {what}{_detail(cell, what)}"
        if summary.failures.get("unfinished"):
            yield f"{cell.name}: latencies leave out the unfinished, and so look better than they are"
        if any(run.end.aborted for run in cell.runs):
            yield f"{cell.name}: stopped before its end"
        if summary.late_p99 > LATE_S:
            yield f"{cell.name}: requests were sent up to {1e3 * summary.late_p99:.0f} ms late (P99)"
        yield from _lengths(cell, summary)


def _detail(cell: Cell, outcome: str) -> str:
    detail = next((each.detail for each in cell.records if each.outcome == outcome and each.detail), "")
    return f" ({detail[:120]})" if detail else ""


def _lengths(cell: Cell, summary: Summary) -> Iterator[str]:
    if summary.prompt_errors:
        yield f"{cell.name}: {summary.prompt_errors} prompts were not as long as the workload wants"
    if summary.output_errors:
        yield f"{cell.name}: {summary.output_errors} answers were not as long as the workload wants"
    if summary.guessed:
        yield f"{cell.name}: no token counts from the server: {summary.guessed} answers taken for one a chunk"
    if summary.tokens_per_chunk > 1.05:
        yield (
            f"{cell.name}: {summary.tokens_per_chunk:.1f} tokens a chunk: TBT is the gap between chunks, "
            "which is what a reader sees, and larger than that between tokens"
        )
