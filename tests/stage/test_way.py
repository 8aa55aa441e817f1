import pytest

from services.stage.transport.choice import Hop, Way, ways
from shared.config import StageConfig

MIB = 1024 * 1024
SAME_HOST = Hop(shares_memory=True, has_group=False, max_payload=MIB)
OTHER_HOST = Hop(shares_memory=False, has_group=False, max_payload=MIB)
WITH_GROUP = Hop(shares_memory=False, has_group=True, max_payload=MIB)


@pytest.mark.parametrize(
    ("size", "hop", "between_hosts", "first"),
    [
        (1000, SAME_HOST, "chunked", Way.INLINE),
        (1001, SAME_HOST, "chunked", Way.SHM),
        (3000, OTHER_HOST, "chunked", Way.INLINE),  # it would be one piece
        (3001, OTHER_HOST, "chunked", Way.CHUNKED),
        (2000, WITH_GROUP, "distributed", Way.INLINE),
        (2001, WITH_GROUP, "distributed", Way.DISTRIBUTED),
        (3001, OTHER_HOST, "distributed", Way.CHUNKED),  # without a group
    ],
)
def test_auto_goes_by_size_and_place(size: int, hop: Hop, between_hosts: str, first: Way) -> None:
    config = StageConfig(
        inline_bytes=1000,
        inline_bytes_between_hosts=2000,
        chunk_bytes=3000,
        between_hosts=between_hosts,  # type: ignore[arg-type]
    )
    assert ways(config, size, hop)[0] is first


def test_where_memory_is_full_there_is_another_way() -> None:
    assert ways(StageConfig(), 10 * MIB, SAME_HOST) == [Way.SHM, Way.CHUNKED]


def test_inline_leaves_room_for_the_plan() -> None:
    config = StageConfig(inline_bytes_between_hosts=2 * MIB)
    assert ways(config, MIB - 1, OTHER_HOST)[0] is Way.CHUNKED
    assert ways(config, MIB // 2, OTHER_HOST) == [Way.INLINE, Way.CHUNKED]


@pytest.mark.parametrize("forced", ["inline", "shm", "chunked", "distributed"])
def test_a_forced_way_is_the_only_one(forced: str) -> None:
    config = StageConfig(transport=forced)  # type: ignore[arg-type]
    for hop in (SAME_HOST, OTHER_HOST, WITH_GROUP):
        for size in (1, 100 * MIB):
            assert ways(config, size, hop) == [Way(forced)]
