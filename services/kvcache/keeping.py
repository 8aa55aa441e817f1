"""What stays of a job that has ended by itself: its full blocks, as a prefix for others."""

from services.kvcache.jobs import JobKV
from services.kvcache.pool import BlockPool
from services.kvcache.prefixes import CachedBlock, PrefixCache
from shared.block_hashes import split
from shared.ids import BlockId


def keep(
    job: JobKV, prefix: bytes, cache: PrefixCache, host: BlockPool, block_size: int
) -> tuple[list[BlockId], list[CachedBlock]]:
    """Hand over to `cache` what of the job is on the host already and is not known there.

    Returns the device blocks that have still to be copied, and where to. Only free host blocks are taken and
    those of older prefixes: nothing of any job gives way. Of what does not fit, the end is left out.
    """
    full = job.tokens // block_size
    chain = split(prefix)[:full]
    known = cache.known(chain)
    have = {cached.chain_hash for cached in known}
    cache.read(known)  # what follows them must not displace them
    new = [index for index, chain_hash in enumerate(chain) if chain_hash not in have]
    new = new[: cache.room_for(len(new))]
    saved = job.saved // block_size
    to_copy = [index for index in new if index >= saved]
    cache.give_way(len(to_copy) - host.free)
    to_copy = to_copy[: host.free]
    cache.release(known)

    for index in new:
        if index < saved:
            cache.add(chain[index], job.host[index], written=True)
    handed_over = {index for index in new if index < saved}
    job.host = [block for index, block in enumerate(job.host) if index not in handed_over]
    job.saved = 0
    targets = host.allocate(len(to_copy))
    entries = [
        cache.add(chain[index], block, written=False) for index, block in zip(to_copy, targets, strict=True)
    ]
    cache.touch(chain)
    return [job.device[index] for index in to_copy], entries
