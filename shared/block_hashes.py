"""Chain hashes: what a block's KV depends on, so that equal hashes mean equal KV."""

from array import array
from hashlib import blake2b

from shared.messages import HASH_BYTES


def block_hashes(tokens: list[int], block_size: int, salt: str, known: bytes = b"") -> bytes:
    """`HASH_BYTES` for each full block of `tokens`: of its own tokens, of all before it, and of `salt`.

    known: those of the first blocks, which are not computed again
    """
    parent = known[-HASH_BYTES:] or _root(salt)
    data = array("i", tokens).tobytes()
    size = 4 * block_size
    hashes = [known]
    for start in range(len(known) // HASH_BYTES * size, len(data) - size + 1, size):
        parent = blake2b(parent + data[start : start + size], digest_size=HASH_BYTES).digest()
        hashes.append(parent)
    return b"".join(hashes)


def split(prefix: bytes) -> list[bytes]:
    """One hash each, of packed ones."""
    return [prefix[start : start + HASH_BYTES] for start in range(0, len(prefix), HASH_BYTES)]


def _root(salt: str) -> bytes:
    """What the first block continues. Hashed under another name than blocks are: clients choose salts, and
    none of them may be the bytes of somebody's tokens.
    """
    return blake2b(salt.encode(), digest_size=HASH_BYTES, person=b"cache_salt").digest()
