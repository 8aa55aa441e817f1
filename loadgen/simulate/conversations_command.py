"""`skipjoin simulate conversations`: what the reuse of KV saves when turns build on each other."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from loadgen.simulate import profile
from loadgen.simulate.conversations import Replay
from loadgen.simulate.output import write
from loadgen.simulate.paper import SLO_S
from loadgen.simulate.results import summarise
from loadgen.simulate.scenario import Scenario
from loadgen.workload import traces
from loadgen.workload.requests import Turn
from services.scheduler.policy import POLICIES
from shared.config import Config
from shared.errors import ConfigError
from shared.messages import Direction

POLICIES_COMPARED = ("skip-join", "markov-priority")
"""The default, and FastSwitch's own trace of priorities."""

REUSE = ((False, False), (True, False), (False, True), (True, True))
"""kv.reuse, kv.prefix_reuse"""


class Row(msgspec.Struct, frozen=True):
    """swapped_out, swapped_in: blocks; computed: tokens; ttft, ttft_p95, latency_per_token: seconds"""

    policy: str
    host_copies: bool
    prefixes: bool
    swapped_out: int
    swapped_in: int
    computed: int
    ttft: float
    ttft_p95: float
    latency_per_token: float
    recomputes: int
    skipped: int


def add(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], None]:
    parser.add_argument("trace", type=Path, help="table with conv_id, new_prompt_len and output_len")
    parser.add_argument("--n", type=int, help="conversations; default: all of the table")
    parser.add_argument("--rate", type=float, default=0.3, help="conversations that begin per second")
    parser.add_argument(
        "--think", type=float, default=10.0, metavar="S", help="mean pause before a next turn"
    )
    parser.add_argument("--policy", nargs="+", default=POLICIES_COMPARED, choices=sorted(POLICIES))
    parser.add_argument("--model", default="llama-8b-a10", help="a name, or a profile in a .json file")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    return _run


def _run(options: argparse.Namespace) -> None:
    """Raises ConfigError for a rate, pause or number that makes no load."""
    if options.rate <= 0 or options.think < 0 or (options.n is not None and options.n < 1):
        raise ConfigError("--rate and --n must be positive, --think not negative")
    talks = traces.read_conversations(options.trace)[: options.n]
    print(
        "| policy | host copies kept | prefixes kept | swapped out / in, blocks | computed tokens "
        "| TTFT mean / P95, s | latency per token, s |\n" + "|---" * 7 + "|"
    )
    rows: list[Row] = []
    for policy in options.policy:
        for copies, prefixes in REUSE:
            began = time.perf_counter()
            row = _row(options, policy, copies, prefixes, talks)
            rows.append(row)
            print(
                f"| {policy} | {_yes(copies)} | {_yes(prefixes)} | {row.swapped_out:,} / {row.swapped_in:,} "
                f"| {row.computed:,} | {row.ttft:.2f} / {row.ttft_p95:.2f} | {row.latency_per_token:.3f} |",
                flush=True,
            )
            print(f"{time.perf_counter() - began:.0f} s, {row.skipped} turns too long", file=sys.stderr)
    write(options.json, {"rows": rows})


def _row(
    options: argparse.Namespace, policy: str, copies: bool, prefixes: bool, talks: Sequence[Sequence[Turn]]
) -> Row:
    model = profile.model(options.model)
    config = _reusing(Scenario(model, policy, batch=options.batch).config(), copies, prefixes)
    replay = Replay(config, model, options.rate, options.think, options.seed)
    outcome = replay.run(talks)
    summary = summarise(outcome, SLO_S)
    blocks = {way: tokens // config.kv.block_size for way, tokens in outcome.swapped_tokens.items()}
    return Row(
        policy, copies, prefixes, blocks[Direction.OUT], blocks[Direction.IN], outcome.computed_tokens,
        summary.ttft.mean, summary.ttft.p95, summary.latency_per_token.mean, summary.recomputes,
        replay.skipped,
    )  # fmt: skip


def _reusing(config: Config, copies: bool, prefixes: bool) -> Config:
    kv = msgspec.structs.replace(config.kv, reuse=copies, prefix_reuse=prefixes)
    return msgspec.structs.replace(config, kv=kv)


def _yes(on: bool) -> str:
    return "yes" if on else "no"
