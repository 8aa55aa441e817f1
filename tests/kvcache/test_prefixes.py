"""Prefixes of ended jobs: who finds them, what they give way to, and that nobody writes what others read."""

import pytest

from services.kvcache.core import KVCache
from shared.block_hashes import block_hashes
from shared.config import KVConfig
from shared.ids import JobId
from shared.messages import HASH_BYTES, Direction, Directive
from tests.cores import Cores, create_config, create_submit

CONVERSATION = list(range(500, 520))
"""Five blocks of four tokens."""


def create_cores(*, copies: int = 1, **kv: object) -> Cores:
    settings = {"block_size": 4, "device_blocks": 12, "host_blocks": 24, "swap_mode": "reactive",
                "reserve_blocks": 0}  # fmt: skip
    scheduler: dict[str, object] = {"policy": "fixed-priority", "max_batch_size": 4}
    return Cores(create_config(scheduler=scheduler, kv=settings | kv), copies=copies, watched=True)


def serve(cores: Cores, job_id: int, prompt: list[int], *, max_tokens: int = 2, salt: str | None = "") -> int:
    """Run a job to its end; returns how many tokens of its prompt were not computed."""
    cores.submit(create_submit(job_id, prompt=prompt, max_tokens=max_tokens, cache_salt=salt))
    cores.plan()
    start = cores.in_flight[0].jobs[0].start
    cores.run()
    return start


def begin_copy_in(cores: Cores, job_id: int) -> None:
    """A job whose prefix is on its way to the device, in a step that waits for it."""
    cores.submit(create_submit(job_id, prompt=CONVERSATION, cache_salt=""))
    cores.plan()
    assert [directive.direction for directive in cores.moving] == [Direction.IN]


# ---------------------------------------------------------------- hits


def test_the_next_turn_computes_only_what_is_new() -> None:
    cores = create_cores()
    assert serve(cores, 1, CONVERSATION) == 0
    said = CONVERSATION + cores.received[JobId(1)]
    assert len(said) == 22 and cores.kv.cached_blocks == 5, "the sixth block is not full"
    assert serve(cores, 2, [*said, 7, 8, 9]) == 20
    assert cores.received[JobId(2)] == [1025, 1026]


@pytest.mark.parametrize("mode", ["reactive", "proactive"])
@pytest.mark.parametrize("copies", [1, 2])
def test_in_both_modes_and_with_several_stages(mode: str, copies: int) -> None:
    cores = create_cores(swap_mode=mode, copies=copies)
    serve(cores, 1, CONVERSATION)
    assert serve(cores, 2, [*CONVERSATION, 7]) == 20


@pytest.mark.parametrize(("common", "found"), [(3, 0), (4, 4), (11, 8), (19, 16)])
def test_only_full_blocks_that_begin_alike_are_found(common: int, found: int) -> None:
    cores = create_cores()
    serve(cores, 1, CONVERSATION)
    assert serve(cores, 2, CONVERSATION[:common] + [9] * 8) == found


def test_one_token_is_always_computed() -> None:
    """Without it there would be nothing to draw the first token from."""
    cores = create_cores()
    serve(cores, 1, CONVERSATION)
    assert serve(cores, 2, CONVERSATION) == 16


def test_the_last_token_is_not_kept_since_its_kv_was_never_written() -> None:
    cores = create_cores()
    serve(cores, 1, CONVERSATION, max_tokens=4)  # 24 tokens, 23 in the KV cache
    assert cores.kv.cached_blocks == 5


def test_the_scheduler_tells_how_much_was_found() -> None:
    cores = create_cores()
    serve(cores, 1, CONVERSATION)
    cores.submit(create_submit(2, prompt=CONVERSATION, cache_salt=""))
    cores.plan()
    missed = cores.scheduler.tokens_from(JobId(2), 0)
    assert missed is None
    cores.finish_step()
    missed = cores.scheduler.tokens_from(JobId(2), 0)
    assert missed is not None and missed.cached == 16


def test_a_hit_fits_into_a_token_budget_that_its_prompt_does_not() -> None:
    config = create_config(
        scheduler={"policy": "fcfs", "max_batch_tokens": 20, "max_batch_size": 4, "chunked_prefill": True},
        kv={"block_size": 4, "device_blocks": 40, "host_blocks": 80, "swap_mode": "reactive"},
    )
    cores = Cores(config, watched=True)
    serve(cores, 1, list(range(60)))
    cores.submit(create_submit(2, prompt=[*range(60), 7, 7], cache_salt=""))
    cores.plan()
    (job,) = cores.in_flight[0].jobs
    assert (job.start, len(job.tokens)) == (60, 2) and job.sampling is not None
    cores.run()


# ---------------------------------------------------------------- who shares


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [("a", "a", 16), ("a", "b", 0), ("", "a", 0), ("a", "", 0), (None, "", 0), ("", None, 0)],
)
def test_only_jobs_with_the_same_salt_share(first: str | None, second: str | None, found: int) -> None:
    cores = create_cores()
    serve(cores, 1, CONVERSATION, salt=first)
    assert serve(cores, 2, CONVERSATION, salt=second) == found


def test_a_hash_stands_for_all_that_a_block_follows() -> None:
    hashes = block_hashes([1, 2, 3, 4, 1, 2], 2, "")
    blocks = {hashes[i : i + HASH_BYTES] for i in range(0, len(hashes), HASH_BYTES)}
    assert len(blocks) == 3, "[1, 2] at the beginning and at the end differ"
    assert block_hashes([1, 2, 3, 4, 1, 2, 5], 2, "", hashes[:HASH_BYTES]) == hashes
    salts = {block_hashes([1, 2], 2, salt) for salt in ("", "a", "\x01\0\0\0\x02\0\0\0")}
    assert len(salts) == 3


@pytest.mark.parametrize("kv", [{"prefix_reuse": False}, {"prefix_blocks": 0}, {"swap_mode": "recompute"},
                                {"swap_mode": "defer"}, {"host_blocks": 0}])  # fmt: skip
def test_switched_off(kv: dict[str, object]) -> None:
    cores = create_cores(**kv)
    serve(cores, 1, CONVERSATION)
    assert serve(cores, 2, CONVERSATION) == 0 and cores.kv.cached_blocks == 0


# ---------------------------------------------------------------- what gives way


def test_least_recently_used_first_and_the_end_before_the_beginning() -> None:
    cores = create_cores(prefix_blocks=10)
    other, third = [n + 100 for n in CONVERSATION], [n + 200 for n in CONVERSATION]
    serve(cores, 1, CONVERSATION)
    serve(cores, 2, other)
    serve(cores, 3, CONVERSATION)  # used again
    serve(cores, 4, third[:9])
    assert cores.kv.cached_blocks == 10
    assert serve(cores, 5, [*CONVERSATION, 1], salt="") == 20
    assert serve(cores, 6, [*other, 1]) == 12, "two blocks had to go"


def fill_host(cores: Cores) -> None:
    """Two jobs that do not fit on the device together, the first of them swapped out."""
    cores.submit(create_submit(50, prompt=[1] * 40, max_tokens=8, priority=1))
    cores.iterate(1)
    cores.submit(create_submit(51, prompt=[2] * 40, max_tokens=2))
    cores.plan()


def test_prefixes_give_way_before_a_job_is_dropped() -> None:
    cores = create_cores(host_blocks=10, prefix_blocks=10)
    serve(cores, 1, CONVERSATION)
    fill_host(cores)
    assert [directive.direction for directive in cores.moving] == [Direction.OUT]
    assert cores.kv.cached_blocks == 0 and cores.kv.host.free == 0
    cores.run()


def test_prefixes_of_a_full_host_are_not_kept() -> None:
    cores = create_cores(host_blocks=10, prefix_blocks=10)
    fill_host(cores)
    cores.finish_all_transfers()
    cores.submit(create_submit(60, prompt=CONVERSATION, max_tokens=1, priority=-1, cache_salt=""))
    cores.iterate(1)
    cores.plan()
    assert cores.kv.cached_blocks == 0 and cores.kv.host.free == 0, "the job that waits there stays"
    cores.run()


def test_what_a_job_has_on_the_host_already_is_not_copied_again() -> None:
    cores = create_cores(host_blocks=24)
    cores.submit(create_submit(1, prompt=list(range(40)), max_tokens=5, priority=1, cache_salt=""))
    cores.iterate(1)
    cores.submit(create_submit(2, prompt=[2] * 40, max_tokens=1))
    while cores.scheduler.unfinished > 1:
        cores.plan()
        cores.finish_all_transfers()
        if cores.in_flight:
            cores.finish_step()
    while cores.scheduler.unfinished:
        cores.plan()
        cores.finish_step()
    cores.plan()
    (kept,) = cores.moving
    assert (kept.direction, kept.blocks) == (Direction.OUT, 1), "ten blocks were on the host"
    cores.settle()
    assert cores.kv.cached_blocks == 11


# ---------------------------------------------------------------- copies under way


@pytest.mark.parametrize("reuse", [True, False])
def test_a_prefix_stays_while_a_copy_reads_it_or_a_job_counts_on_it(reuse: bool) -> None:
    cores = create_cores(host_blocks=10, prefix_blocks=10, reuse=reuse)
    serve(cores, 1, CONVERSATION)
    begin_copy_in(cores, 2)
    cores.kv.prefixes.give_way(10)
    assert cores.kv.cached_blocks == 4, "the fifth block is not read"
    cores.finish_step()
    cores.kv.prefixes.give_way(10)
    assert cores.kv.cached_blocks == (4 if reuse else 0)
    cores.run()
    cores.kv.prefixes.give_way(10)
    assert cores.kv.cached_blocks == 0, "nobody counts on it any more"


def test_a_job_that_began_with_a_prefix_is_swapped_out_without_it() -> None:
    """The prefix is on the host already; brought in again, it comes from there."""
    cores = create_cores()
    serve(cores, 1, CONVERSATION)
    cores.submit(create_submit(2, prompt=[*CONVERSATION, *([7] * 8)], max_tokens=9, cache_salt=""))
    cores.iterate(3)
    cores.submit(create_submit(3, prompt=list(range(20)), max_tokens=2))  # shorter, and there is no room
    out = swap(cores, Direction.OUT)
    assert out.blocks == 3, "of eight, five are the prefix"
    back = swap(cores, Direction.IN)
    assert back.blocks == 8
    cores.run()
    assert cores.received[JobId(2)] == [1028 + index for index in range(9)]


def swap(cores: Cores, direction: Direction) -> Directive:
    """Go on until something moves that way."""
    for _ in range(20):
        cores.plan()
        found = [directive for directive in cores.moving if directive.direction is direction]
        if found:
            return found[0]
        cores.finish_all_transfers()
        if cores.in_flight:
            cores.finish_step()
    raise AssertionError(f"nothing is swapped {direction.value}")


def test_borrowed_blocks_give_way_to_a_job_that_must_go_to_the_host() -> None:
    """The host is full of a prefix that a running job counts on: its copy is given up, no job is lost."""
    cores = create_cores(device_blocks=14, host_blocks=8, prefix_blocks=8)
    serve(cores, 1, CONVERSATION)
    assert cores.kv.cached_blocks == 5
    cores.submit(create_submit(2, prompt=[*CONVERSATION, 7], max_tokens=9, cache_salt=""))
    cores.iterate(1)
    cores.submit(create_submit(3, prompt=list(range(24)), max_tokens=9))
    cores.iterate(1)
    cores.submit(create_submit(4, prompt=list(range(10)), max_tokens=4))
    out = swap(cores, Direction.OUT)
    assert out.job_id == JobId(3) and out.blocks > 3
    assert cores.kv.cached_blocks < 5
    cores.run()
    assert [len(cores.received[JobId(number)]) for number in (2, 3, 4)] == [9, 9, 4]


def test_what_is_being_written_cannot_be_found_yet() -> None:
    cores = create_cores()
    cores.submit(create_submit(1, prompt=CONVERSATION, max_tokens=1, cache_salt=""))
    cores.iterate(1)
    cores.submit(create_submit(2, prompt=CONVERSATION, max_tokens=1, cache_salt=""))
    cores.plan()
    assert cores.in_flight[0].jobs[0].start == 0 and cores.moving
    cores.finish_step()
    cores.plan()
    assert len(cores.moving) == 1, "the second job's blocks are not written a second time"
    cores.settle()
    assert cores.kv.cached_blocks == 5


@pytest.mark.parametrize("mode", ["reactive", "proactive"])
def test_an_abort_while_the_prefix_comes_in(mode: str) -> None:
    cores = create_cores(swap_mode=mode)
    serve(cores, 1, CONVERSATION)
    begin_copy_in(cores, 2)
    cores.scheduler.abort([JobId(2)], cores.clock.now())
    cores.plan()
    assert cores.kv.device.free < 12, "the copy still writes"
    cores.run()
    assert serve(cores, 3, CONVERSATION) == 16


@pytest.mark.parametrize("end", ["abort", "error"])
def test_only_jobs_that_ended_by_themselves_leave_a_prefix(end: str) -> None:
    cores = create_cores()
    cores.submit(create_submit(1, prompt=CONVERSATION, max_tokens=9, cache_salt=""))
    cores.iterate(1)
    if end == "abort":
        cores.scheduler.abort([JobId(1)], cores.clock.now())
    else:
        for _ in range(2):
            cores.plan()
            cores.finish_step(error="boom")
    cores.settle()
    assert cores.kv.cached_blocks == 0


def test_a_failed_step_begins_with_the_prefix_again() -> None:
    cores = create_cores()
    serve(cores, 1, CONVERSATION)
    begin_copy_in(cores, 2)
    cores.finish_step(error="boom")
    cores.plan()
    assert cores.in_flight[0].jobs[0].start == 16
    cores.run()


def test_a_new_epoch_begins_without_prefixes_and_finds_what_is_kept_in_it() -> None:
    cores = create_cores()
    cores.submit(create_submit(2, prompt=CONVERSATION, max_tokens=3, cache_salt=""))
    cores.iterate(1)
    cores.scheduler.lose_kv(cores.clock.now())
    cores.kv = KVCache(KVConfig(block_size=4, device_blocks=12, host_blocks=24, swap_mode="reactive"), 1)
    cores.run()
    assert serve(cores, 3, CONVERSATION) == 16


def test_two_that_begin_alike_write_into_blocks_of_their_own() -> None:
    cores = create_cores(device_blocks=24)
    serve(cores, 1, CONVERSATION)
    for job_id in (2, 3):
        cores.submit(create_submit(job_id, prompt=CONVERSATION, max_tokens=6, cache_salt=""))
    cores.plan()
    tables = [job.table for job in cores.in_flight[0].jobs]
    assert len(tables) == 2 and all(job.start == 16 for job in cores.in_flight[0].jobs)
    blocks = [table[i : i + 4] for table in tables for i in range(0, len(table), 4)]
    assert len(set(blocks)) == len(blocks)
    cores.run()
