"""Prefixes of ended jobs: full host blocks by chain hash, for jobs that begin with the same tokens.

A block here has no job. It is read by copies to the device, never written again: whoever continues it does
so in blocks of its own. It is cache and nothing more: it gives way to whatever a job needs.

    add ──> (being written) ──written──> at rest <──release── being read
                                            │ └──────read───────^
                                         give_way
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice

from services.kvcache.pool import BlockPool
from shared.block_hashes import split
from shared.config import KVConfig
from shared.ids import BlockId, JobId


class CachedBlock:
    """block: on the host; written: its KV is there; readers: copies under way that read it, jobs that began
    with it and count it among their host blocks, and whoever else needs it to stay
    """

    __slots__ = ("block", "chain_hash", "readers", "written")

    def __init__(self, chain_hash: bytes, block: BlockId, *, written: bool) -> None:
        self.chain_hash = chain_hash
        self.block = block
        self.written = written
        self.readers = 0


class PrefixCache:
    """Least recently used blocks give way first, of one chain those at its end: what is left of it is still
    the beginning of something.
    """

    def __init__(self, config: KVConfig, pool: BlockPool) -> None:
        self._most = config.prefix_capacity
        self._block_size = config.block_size
        self._pool = pool
        self._blocks: dict[bytes, CachedBlock] = {}
        # Those that nothing reads or writes; the first gives way first. Apart from the others, which may be
        # most of them: whoever needs room must not look through all that is counted on.
        self._at_rest: OrderedDict[bytes, CachedBlock] = OrderedDict()
        self._chains: dict[JobId, list[bytes]] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    # ------------------------------------------------------------ what a job begins with

    def announce(self, job_id: JobId, prefix: bytes) -> None:
        """A job has come that may begin with what is here; it may be asked for until `forget`."""
        self._chains[job_id] = split(prefix)

    def forget(self, job_id: JobId) -> None:
        self._chains.pop(job_id, None)

    def longest(self, job_id: JobId, tokens: int) -> list[CachedBlock]:
        """The blocks that a job of `tokens` tokens may begin with; one token at least is left to compute."""
        run: list[CachedBlock] = []
        if self._blocks:
            for chain_hash in islice(self._chains.get(job_id, ()), (tokens - 1) // self._block_size):
                cached = self._blocks.get(chain_hash)
                if cached is None or not cached.written:
                    break
                run.append(cached)
        return run

    def holds(self, run: Sequence[CachedBlock]) -> bool:
        """Whether none of `run` has given way since it was found."""
        return all(self._blocks.get(cached.chain_hash) is cached for cached in run)

    def read(self, run: Sequence[CachedBlock]) -> None:
        """A copy reads them: they stay until `release`."""
        for cached in run:
            cached.readers += 1
            self._at_rest.pop(cached.chain_hash, None)

    def release(self, run: Sequence[CachedBlock]) -> None:
        """Used until now."""
        for cached in run:
            cached.readers -= 1
        self._rest(run)

    # ------------------------------------------------------------ what is kept

    def known(self, chain: Iterable[bytes]) -> list[CachedBlock]:
        """Those of a chain that are here or being written."""
        return [self._blocks[chain_hash] for chain_hash in chain if chain_hash in self._blocks]

    def room_for(self, blocks: int) -> int:
        """How many of `blocks` more may be kept, those used least recently giving way."""
        self.give_way(len(self._blocks) + blocks - self._most)
        return max(0, min(blocks, self._most - len(self._blocks)))

    def add(self, chain_hash: bytes, block: BlockId, *, written: bool) -> CachedBlock:
        """Own a host block from now on."""
        cached = self._blocks[chain_hash] = CachedBlock(chain_hash, block, written=written)
        self._rest([cached])
        return cached

    def written(self, added: Sequence[CachedBlock]) -> None:
        """The copies that fill them are complete: they may be found now."""
        for cached in added:
            cached.written = True
        self._rest(added)

    def touch(self, chain: Sequence[bytes]) -> None:
        """Used now; its end a little less recently than its beginning."""
        for chain_hash in reversed(chain):
            if chain_hash in self._at_rest:
                self._at_rest.move_to_end(chain_hash)

    def give_way(self, blocks: int) -> None:
        """Free so many host blocks, or all that nothing reads or writes."""
        leaving = [self._at_rest.popitem(last=False)[1] for _ in range(min(blocks, len(self._at_rest)))]
        for cached in leaving:
            del self._blocks[cached.chain_hash]
        self._pool.release(sorted(cached.block for cached in leaving))

    def _rest(self, run: Sequence[CachedBlock]) -> None:
        """Those of a chain that may give way from now on; its end before its beginning."""
        for cached in reversed(run):
            if cached.written and not cached.readers:
                self._at_rest[cached.chain_hash] = cached

    # ------------------------------------------------------------ bookkeeping

    @property
    def being_written(self) -> int:
        return sum(not cached.written for cached in self._blocks.values())

    def host_blocks(self) -> list[BlockId]:
        return [cached.block for cached in self._blocks.values()]
