"""Prints what the KV-cache manager's part of a decision costs with many blocks (budget: 1 ms at 100,000).

python -m loadgen.kv_plan_cost [--jobs 1000]        CPU time of KVCache.plan, skip-join, batch 16

Prompts of 1,600 to 2,400 tokens, answers of 2,000: 1,000 jobs need many more blocks than there are. The
dearest plans exchange the whole batch, some 2,300 blocks, whose copies take hundreds of times longer.
"""

import argparse
import random
import time

from loadgen.plan_cost import COST, Unobserved, iterations
from services.kvcache.core import KVCache
from services.scheduler.core import Scheduler
from shared.config import parse
from shared.ids import JobId
from shared.messages import Limits, Sampling, Submit

TIERS = ((100_000, 100_000), (50_000, 100_000))
"""Device and host blocks."""

WARM_UP, ITERATIONS = 2000, 4000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000)
    options = parser.parse_args()
    print("| swap mode | device / host blocks | median, µs | P99 | P99.9 | plans that swap | blocks moved |")
    print("|---" * 7 + "|")
    for mode in ("proactive", "reactive"):
        for device, host in TIERS:
            seconds, swapping, moved = measure(mode, device, host, options.jobs)
            seconds.sort()
            figures = [f"{1e6 * seconds[int(share * len(seconds))]:.0f}" for share in (0.5, 0.99, 0.999)]
            print(
                f"| {mode} | {device:,} / {host:,} | {' | '.join(figures)} | {swapping} | {moved:,} |",
                flush=True,
            )


def measure(mode: str, device: int, host: int, jobs: int) -> tuple[list[float], int, int]:
    """CPU seconds of each plan, how many of them moved blocks, and how many blocks."""
    config = parse({"kv": {"device_blocks": device, "host_blocks": host, "swap_mode": mode}})
    scheduler = Scheduler(config, Unobserved(), Limits(100_000, device * config.kv.block_size))
    scheduler.set_cost_model(COST)
    kv = KVCache(config.kv, 1)
    draw = random.Random(1)
    for number in range(jobs):
        prompt = [1] * draw.randrange(1600, 2400)
        scheduler.submit(Submit(JobId(number), "gateway", prompt, 2000, Sampling(0.0)), None, 0.0)
    costs = list(iterations(scheduler, kv, WARM_UP + ITERATIONS, time.thread_time))[WARM_UP:]
    moved = [sum(directive.blocks for directive in cost.reply.directives) for cost in costs]
    return [cost.kv for cost in costs], sum(map(bool, moved)), sum(moved)


if __name__ == "__main__":
    main()
