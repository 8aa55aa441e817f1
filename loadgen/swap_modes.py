"""Prints what swapping costs on the live system when memory is short, mode by mode.

    python -m loadgen.swap_modes [--modes proactive reactive recompute defer]     about 4 minutes on two cores

16 requests of 48 tokens come at once; there is room for the KV of all, or of 5. Each row is a new start.

stall: time that iterations were blocked on swap-ins. All requests wait meanwhile, so it is stated against the
    time of the run; against the latencies of the requests, added up, a second of it counts once, not 16 times
copies: mean bandwidth of one copy
recomputed: times that a job's KV was dropped and computed again
"""

import argparse
import asyncio
import time

import httpx

from loadgen.side_by_side import PROMPT, complete, metrics, run

_REQUESTS, _TOKENS = 16, 48
_FITS, _SHORT = 256, 32
"""kv.device_blocks"""
_MODES = ("proactive", "reactive", "recompute", "defer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--modes", nargs="+", choices=_MODES, default=_MODES)
    options = parser.parse_args()
    columns = (
        "pool", "mode", "time, s", "tokens/s", "mean latency, s", "stall, % of time", "stall, % of latencies",
        "swapped out / in, blocks", "copies, GB/s", "recomputed",
    )  # fmt: skip
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|", flush=True)
    for blocks, mode in ((_FITS, "proactive"), *((_SHORT, mode) for mode in options.modes)):
        latencies, seconds, delta = run(sixteen_at_once, f"kv.device_blocks={blocks}", f"kv.swap_mode={mode}")
        print(_row(blocks, mode, latencies, seconds, delta), flush=True)


def _row(blocks: int, mode: str, latencies: list[float], seconds: float, delta: dict[str, float]) -> str:
    stall = delta['skipjoin_swap_stall_seconds_total{stage="0"}']
    copied, copying = (
        sum(value for name, value in delta.items() if name.startswith(f"skipjoin_swap_{what}_total"))
        for what in ("bytes", "seconds")
    )
    moved = [delta[f"skipjoin_swap_{direction}_blocks_total"] for direction in ("out", "in")]
    cells = [
        f"{blocks} blocks",
        mode,
        f"{seconds:.1f}",
        f"{_REQUESTS * _TOKENS / seconds:.1f}",
        f"{sum(latencies) / len(latencies):.1f}",
        f"{100 * stall / seconds:.2f}",
        f"{100 * stall / sum(latencies):.2f}",
        f"{moved[0]:.0f} / {moved[1]:.0f}",
        f"{copied / copying / 1e9:.1f}" if copying else "",
        f"{delta['skipjoin_kv_dropped_jobs_total']:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


async def sixteen_at_once(http: httpx.AsyncClient) -> tuple[list[float], float, dict[str, float]]:
    """Latencies and the time of all, seconds, and what the metrics have grown by."""
    before, began = await metrics(http), time.perf_counter()
    latencies = await asyncio.gather(
        *(complete(http, _TOKENS, f"Story {index}. " + PROMPT * 2) for index in range(_REQUESTS))
    )
    seconds = time.perf_counter() - began
    after = await metrics(http)
    return latencies, seconds, {name: value - before.get(name, 0.0) for name, value in after.items()}


if __name__ == "__main__":
    main()
