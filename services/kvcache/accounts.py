"""Where every block is: each is free or has exactly one owner."""

from collections.abc import Collection, Iterable
from itertools import pairwise

from services.kvcache.jobs import JobKV, Residence
from services.kvcache.pool import BlockPool
from services.kvcache.prefixes import PrefixCache
from shared.errors import SkipjoinError
from shared.ids import BlockId

Tiers = tuple[tuple[str, BlockPool], tuple[str, BlockPool]]
"""Name and pool of the device's and of the host's."""


class IntegrityError(SkipjoinError):
    """A block was lost, doubled or shared by two owners."""


def occupancy(tiers: Tiers, jobs: Iterable[JobKV], prefixes: PrefixCache) -> dict[str, dict[str, int]]:
    """Blocks by tier and state: free, held (a job's, at rest), moving, cached (a copy that may give way: the
    job is also on the device, or has ended).
    """
    counts = {name: {"free": pool.free, "held": 0, "moving": 0, "cached": 0} for name, pool in tiers}
    (device, _), (host, _) = tiers
    for job in jobs:
        state = "moving" if job.moving else "held"
        counts[device][state] += len(job.device)
        on_device = job.residence is Residence.DEVICE
        counts[host]["cached" if on_device else state] += len(job.own_host)
    counts[host]["moving"] += prefixes.being_written
    counts[host]["cached"] += len(prefixes) - prefixes.being_written
    return counts


def check(tiers: Tiers, jobs: Collection[JobKV], prefixes: PrefixCache) -> None:
    """Raises IntegrityError naming the tier and the blocks."""
    (device, device_pool), (host, host_pool) = tiers
    _check(device, device_pool, [block for job in jobs for block in job.device])
    of_jobs = [block for job in jobs for block in job.own_host]
    _check(host, host_pool, [*of_jobs, *prefixes.host_blocks()])


def _check(tier: str, pool: BlockPool, owned: list[BlockId]) -> None:
    seen = sorted([*pool.free_blocks(), *owned])
    if seen != list(range(pool.total)):
        lost = set(range(pool.total)) - set(seen)
        doubled = {block for block, after in pairwise(seen) if block == after}
        raise IntegrityError(f"{tier} tier: blocks lost {sorted(lost)}, doubled {sorted(doubled)}")
