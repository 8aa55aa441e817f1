"""Activations in pieces: cut by the sender, put together by the receiver in whatever order they come."""

from collections.abc import Iterator

from shared.ids import StepId
from shared.messages import Chunk


def cut(step_id: StepId, content: memoryview, chunk_bytes: int) -> Iterator[Chunk]:
    """One piece after the other, made when it is asked for; at least one."""
    count = count_chunks(len(content), chunk_bytes)
    for index in range(count):
        piece = content[index * chunk_bytes : (index + 1) * chunk_bytes]
        yield Chunk(step_id, index, count, bytes(piece))


def count_chunks(size: int, chunk_bytes: int) -> int:
    return max(1, -(-size // chunk_bytes))


class Assembly:
    """One step's pieces so far. A piece that comes twice counts once."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pieces: dict[int, bytes] = {}

    def add(self, chunk: Chunk) -> bool:
        """Whether it was new. Pieces that belong to another cut are left out."""
        fits = chunk.count == self.count and chunk.index < self.count
        if not fits or chunk.index in self._pieces:
            return False
        self._pieces[chunk.index] = chunk.data
        return True

    @property
    def arrived(self) -> int:
        return len(self._pieces)

    @property
    def complete(self) -> bool:
        return len(self._pieces) == self.count

    def content(self) -> bytearray:
        """All of it, once it is complete."""
        return bytearray(b"".join(self._pieces[index] for index in range(self.count)))
