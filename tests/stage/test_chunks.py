import random

from hypothesis import given
from hypothesis import strategies as st

from services.stage.transport.chunks import Assembly, count_chunks, cut
from shared.ids import StepId
from shared.messages import Chunk

STEP = StepId(7)


@given(st.binary(max_size=300), st.integers(1, 64), st.randoms())
def test_pieces_in_any_order_and_repeated_make_the_same_bytes(
    content: bytes, chunk_bytes: int, shuffle: random.Random
) -> None:
    chunks = list(cut(STEP, memoryview(content), chunk_bytes))
    assert len(chunks) == count_chunks(len(content), chunk_bytes) >= 1
    assert all(len(chunk.data) <= chunk_bytes for chunk in chunks)
    assembly = Assembly(len(chunks))
    arriving = [*chunks, shuffle.choice(chunks)]
    shuffle.shuffle(arriving)
    new = [assembly.add(chunk) for chunk in arriving]
    assert sum(new) == len(chunks)
    assert assembly.complete
    assert assembly.content() == content


def test_without_one_piece_it_is_not_complete() -> None:
    chunks = list(cut(STEP, memoryview(b"0123456789"), 3))
    for missing in range(len(chunks)):
        assembly = Assembly(len(chunks))
        for chunk in chunks:
            if chunk.index != missing:
                assembly.add(chunk)
        assert not assembly.complete and assembly.arrived == len(chunks) - 1


def test_pieces_of_another_cut_are_left_out() -> None:
    assembly = Assembly(2)
    assert not assembly.add(Chunk(STEP, 0, 3, b"x"))
    assert not assembly.add(Chunk(STEP, 2, 2, b"x"))
    assert assembly.arrived == 0
