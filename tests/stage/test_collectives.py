"""What ranks exchange, with the ranks as threads of this process."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from services.stage.collectives import Alone, Collectives, ProcessGroup
from services.stage.parallel_layers import VocabEmbedding, gather_logits
from services.stage.shards import share
from shared.errors import RankLost

CPU = torch.device("cpu")


def on_ranks(ranks: int, work: Callable[[Collectives], torch.Tensor]) -> list[torch.Tensor]:
    """What `work` returns on each of them."""
    store = dist.HashStore()

    def run(rank: int) -> torch.Tensor:
        with torch.inference_mode():
            return work(ProcessGroup(store, rank, ranks, CPU, "127.0.0.1", 20.0))

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(run, range(ranks)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_sum_is_the_same_on_all_ranks(dtype: torch.dtype) -> None:
    parts = [torch.randn(3, 5).to(dtype) for _ in range(3)]
    sums = on_ranks(3, lambda group: group.sum(parts[group.rank].clone()))
    assert all(torch.equal(each, sums[0]) for each in sums)
    torch.testing.assert_close(sums[0], sum(parts), rtol=0.02, atol=0.02)


def test_broadcast_gives_rank_0s_values() -> None:
    received = on_ranks(3, lambda group: group.broadcast(torch.full((2, 2), float(group.rank))))
    assert all(torch.equal(each, torch.zeros(2, 2)) for each in received)


@pytest.mark.parametrize("vocab", [12, 13, 14, 3])
def test_logits_of_a_vocabulary_that_does_not_come_out_even(vocab: int) -> None:
    logits = torch.randn(4, vocab)

    def part(group: Collectives) -> torch.Tensor:
        mine = share(vocab, group.ranks, group.rank)
        return gather_logits(logits[:, mine.start : mine.stop], vocab, group)

    assert torch.equal(on_ranks(3, part)[0], logits)
    assert gather_logits(logits, vocab, Alone()) is logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_embedding_is_exact(dtype: torch.dtype) -> None:
    whole = torch.randn(13, 6).to(dtype)
    tokens = torch.tensor([[0, 12, 4, 5, 9, 8, 4]])

    def embed(group: Collectives) -> torch.Tensor:
        rows = share(13, group.ranks, group.rank)
        embedding = VocabEmbedding(rows, 6, dtype, group)
        embedding.weight = torch.nn.Parameter(whole[rows.start : rows.stop], requires_grad=False)
        return embedding(tokens)

    assert all(torch.equal(each, whole[tokens]) for each in on_ranks(3, embed))


def test_a_rank_that_does_not_come_ends_the_wait_of_the_others() -> None:
    store = dist.HashStore()
    groups: dict[int, ProcessGroup] = {}

    def assemble(rank: int) -> None:
        groups[rank] = ProcessGroup(store, rank, 2, CPU, "127.0.0.1", 0.5)

    threads = [threading.Thread(target=assemble, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with pytest.raises(RankLost, match="did not take part"):
        groups[0].sum(torch.zeros(2))


def test_ranks_that_never_come_are_given_up() -> None:
    with pytest.raises(RankLost, match="could not reach the other 1"):
        ProcessGroup(dist.HashStore(), 0, 2, CPU, "127.0.0.1", 0.5)
