"""How the KV-cache manager shares out blocks, makes room and takes blocks back."""

import struct

import pytest

from services.kvcache.accounts import IntegrityError
from services.kvcache.core import KVCache
from services.kvcache.pool import BlockPool, coalesce
from shared.config import KVConfig
from shared.errors import KVCapacityError
from shared.ids import BlockId, JobId, StepId, TransferId
from shared.messages import Candidate, Direction, Holder, Move, PlanReply, PlanRequest


def create_kv(device: int = 8, host: int = 8, *, mode: str = "reactive", copies: int = 1) -> KVCache:
    config = KVConfig(block_size=4, device_blocks=device, host_blocks=host, swap_mode=mode)  # type: ignore[arg-type]
    return KVCache(config, copies)


class Planner:
    """Numbers the steps and completes the last one with each new plan."""

    def __init__(self, kv: KVCache) -> None:
        self.kv = kv
        self.step = 0
        self.completed: list[StepId] = []

    def plan(
        self, *candidates: Candidate, holders: tuple[Holder, ...] = (), released: tuple[int, ...] = ()
    ) -> PlanReply:
        self.step += 1
        reply = self.kv.plan(
            PlanRequest(
                StepId(self.step),
                list(candidates),
                list(holders),
                self.completed,
                [JobId(job_id) for job_id in released],
                batch_limit=16,
                token_limit=1000,
            )
        )
        self.completed = [StepId(self.step)] if reply.granted else []
        return reply


def prefill(job_id: int, tokens: int, enst: float = 0.0) -> Candidate:
    return Candidate(JobId(job_id), tokens, tokens, enst)


def decode(job_id: int, context: int, enst: float = 0.0) -> Candidate:
    return Candidate(JobId(job_id), 1, context, enst)


def granted(reply: PlanReply) -> list[int]:
    return [grant.job_id for grant in reply.granted]


def test_blocks_are_granted_as_the_context_grows() -> None:
    planner = Planner(create_kv())
    table = planner.plan(prefill(1, 4)).granted[0].table
    assert struct.unpack("<1i", table) == (0,)
    table = planner.plan(decode(1, 5)).granted[0].table
    assert struct.unpack("<2i", table) == (0, 1)
    assert planner.kv.occupancy()["device"] == {"free": 6, "held": 2, "moving": 0, "cached": 0}


def test_the_job_with_the_largest_enst_makes_room_and_its_blocks_wait_for_every_copy() -> None:
    planner = Planner(create_kv(device=6, copies=2))
    planner.plan(prefill(1, 12), prefill(2, 12))
    reply = planner.plan(prefill(3, 8), holders=(Holder(JobId(1), 5.0), Holder(JobId(2), 9.0)))
    assert granted(reply) == [], "no block is free before the copy is done"
    (directive,) = reply.directives
    assert (directive.job_id, directive.direction) == (2, Direction.OUT)
    assert planner.kv.transfer_done(directive.transfer_id, stage=0, rank=0) is None
    assert granted(planner.plan(prefill(3, 8))) == []
    assert planner.kv.transfer_done(directive.transfer_id, stage=0, rank=0) is None, "the same stage again"
    assert planner.kv.transfer_done(directive.transfer_id, stage=1, rank=0) == directive
    assert granted(planner.plan(prefill(3, 8))) == [3]
    planner.kv.check()


def test_a_swapped_out_job_comes_back_with_the_step_that_runs_it() -> None:
    planner = Planner(create_kv(device=4))
    planner.plan(prefill(1, 12))
    (out,) = planner.plan(prefill(2, 16), holders=(Holder(JobId(1), 1.0),)).directives
    planner.kv.transfer_done(out.transfer_id, 0, 0)
    planner.plan(prefill(2, 16))
    reply = planner.plan(decode(1, 13), released=(2,))
    (back,) = reply.directives
    assert back.direction is Direction.IN and reply.waits == [back.transfer_id] and granted(reply) == [1]
    assert [(move.src, move.count) for move in back.moves] == [(out.moves[0].dst, 3)]
    planner.kv.transfer_done(back.transfer_id, 0, 0)
    planner.plan(released=(1,))
    assert planner.kv.device.free == 4 and planner.kv.host.free == 8


def test_only_written_blocks_move() -> None:
    planner = Planner(create_kv(device=4))
    planner.plan(prefill(1, 4))
    planner.plan(decode(1, 5))
    (out,) = planner.plan(prefill(2, 16), holders=(Holder(JobId(1), 1.0),)).directives
    assert out.blocks == 2


def test_a_later_candidate_cannot_take_blocks_that_an_earlier_one_waits_for() -> None:
    planner = Planner(create_kv(device=4))
    planner.plan(prefill(1, 8))
    reply = planner.plan(prefill(2, 16), prefill(3, 8), holders=(Holder(JobId(1), 1.0),))
    assert granted(reply) == []
    planner.kv.transfer_done(reply.directives[0].transfer_id, 0, 0)
    assert granted(planner.plan(prefill(2, 16), prefill(3, 8))) == [2]


def test_candidates_already_looked_at_are_no_victims_of_later_ones() -> None:
    planner = Planner(create_kv(device=4))
    planner.plan(prefill(1, 8), prefill(2, 8))
    reply = planner.plan(decode(1, 9, enst=50.0), decode(2, 9))
    assert granted(reply) == [] and [d.job_id for d in reply.directives] == [2]
    planner.kv.transfer_done(reply.directives[0].transfer_id, 0, 0)
    assert granted(planner.plan(decode(1, 9), decode(2, 9))) == [1]


@pytest.mark.parametrize(("host", "mode"), [(0, "reactive"), (8, "recompute"), (1, "reactive")])
def test_without_room_on_the_host_the_victim_is_dropped_and_the_blocks_are_free_at_once(
    host: int, mode: str
) -> None:
    planner = Planner(create_kv(device=4, host=host, mode=mode))
    planner.plan(prefill(1, 12))
    reply = planner.plan(prefill(2, 16), holders=(Holder(JobId(1), 1.0),))
    assert (granted(reply), reply.dropped, reply.directives) == ([2], [1], [])


def test_a_full_host_gives_up_the_job_that_is_due_last() -> None:
    planner = Planner(create_kv(device=3, host=3))
    planner.plan(prefill(1, 12))
    (out,) = planner.plan(prefill(2, 12), holders=(Holder(JobId(1), 9.0),)).directives
    planner.kv.transfer_done(out.transfer_id, 0, 0)
    planner.plan(prefill(2, 12))
    reply = planner.plan(prefill(3, 12), holders=(Holder(JobId(1), 9.0), Holder(JobId(2), 4.0)))
    assert reply.dropped == [1] and [d.job_id for d in reply.directives] == [2]
    planner.kv.check()


def test_a_candidate_whose_kv_was_dropped_must_be_recomputed() -> None:
    planner = Planner(create_kv(device=4, host=0))
    planner.plan(prefill(1, 12))
    assert planner.plan(prefill(2, 16), decode(1, 13)).dropped == [1]
    reply = planner.plan(decode(1, 13), released=(2,))
    assert reply.dropped == [1] and granted(reply) == []
    assert granted(planner.plan(prefill(1, 13))) == [1]


@pytest.mark.parametrize("state", ["in flight", "moving out", "moving in", "on host"])
def test_release_takes_effect_only_when_nothing_touches_the_blocks(state: str) -> None:
    planner = Planner(create_kv(device=4))
    planner.plan(prefill(1, 12))
    transfer: TransferId | None = None
    if state != "in flight":
        transfer = planner.plan(prefill(2, 16), holders=(Holder(JobId(1), 1.0),)).directives[0].transfer_id
    if state in ("on host", "moving in"):
        planner.kv.transfer_done(transfer, 0, 0)  # type: ignore[arg-type]
        transfer = None
    if state == "moving in":
        transfer = planner.plan(decode(1, 13), released=(2,)).directives[0].transfer_id
    if state == "in flight":
        planner.completed = []
    planner.plan(released=(1, 2))
    device, host = planner.kv.device.free, planner.kv.host.free
    if state == "in flight":
        assert device == 1
        planner.completed = [StepId(1)]
    elif state == "on host":
        assert (device, host) == (4, 8)
    else:
        assert (device, host) != (4, 8)
    planner.plan()
    if transfer is not None:
        planner.kv.transfer_done(transfer, 0, 0)
    assert (planner.kv.device.free, planner.kv.host.free) == (4, 8)
    planner.kv.check()


def test_unknown_and_repeated_acknowledgements_change_nothing() -> None:
    planner = Planner(create_kv(device=4))
    planner.plan(prefill(1, 12))
    (out,) = planner.plan(prefill(2, 16), holders=(Holder(JobId(1), 1.0),)).directives
    planner.kv.transfer_done(out.transfer_id, 0, 0)
    assert planner.kv.transfer_done(out.transfer_id, 0, 0) is None
    assert planner.kv.transfer_done(TransferId(99), 0, 0) is None
    planner.kv.check()


def test_the_check_names_lost_and_doubled_blocks() -> None:
    kv = create_kv(device=4)
    kv.device.allocate(1)
    with pytest.raises(IntegrityError, match=r"device tier: blocks lost \[0\]"):
        kv.check()
    kv.device.release([BlockId(0), BlockId(3)])
    with pytest.raises(IntegrityError, match=r"doubled \[3\]"):
        kv.check()


def test_pool_refuses_more_than_is_free_and_takes_nothing_then() -> None:
    pool = BlockPool(3)
    with pytest.raises(KVCapacityError, match="4 blocks wanted, 3 of 3 are free"):
        pool.allocate(4)
    assert pool.allocate(3) == [0, 1, 2]


def test_neighbouring_blocks_are_one_copy() -> None:
    blocks = [BlockId(block) for block in (4, 5, 6, 9, 10)]
    targets = [BlockId(block) for block in (0, 1, 2, 3, 7)]
    assert coalesce(blocks, targets) == [Move(BlockId(4), BlockId(0), 3), Move(BlockId(9), BlockId(3), 1),
                                         Move(BlockId(10), BlockId(7), 1)]  # fmt: skip


# ---------------------------------------------------------------- ahead of need


def create_proactive(device: int, *, reserve: int = 0, **fields: object) -> KVCache:
    return KVCache(KVConfig(block_size=4, device_blocks=device, host_blocks=16, swap_mode="proactive",
                            reserve_blocks=reserve, **fields), 1)  # type: ignore[arg-type]  # fmt: skip


def swapped_out(planner: Planner, *job_ids: int) -> None:
    """Fill the device with those jobs, three blocks each, and have them all on the host afterwards."""
    planner.plan(*(prefill(job_id, 12) for job_id in job_ids))
    all_blocks = 4 * planner.kv.device.total
    holders = tuple(Holder(JobId(job_id), 9.0) for job_id in job_ids)
    reply = planner.plan(prefill(99, all_blocks), holders=holders)
    for directive in reply.directives:
        planner.kv.transfer_done(directive.transfer_id, 0, 0)
    planner.plan(released=(99,))
    assert planner.kv.device.free == planner.kv.device.total


def test_a_running_batch_does_not_wait_for_a_job_that_comes_in() -> None:
    planner = Planner(create_proactive(device=8))
    swapped_out(planner, 1)
    planner.plan(prefill(2, 4))
    reply = planner.plan(decode(1, 13), decode(2, 5))
    assert granted(reply) == [2] and reply.waits == []
    (back,) = reply.directives
    assert (back.job_id, back.direction) == (1, Direction.IN)
    assert granted(planner.plan(decode(1, 13), decode(2, 6))) == [2], "the copy is still under way"
    planner.kv.transfer_done(back.transfer_id, 0, 0)
    reply = planner.plan(decode(1, 13), decode(2, 7))
    assert granted(reply) == [1, 2] and not reply.directives


def test_with_nothing_else_to_compute_the_step_waits_for_the_copy() -> None:
    planner = Planner(create_proactive(device=8))
    swapped_out(planner, 1, 2)
    reply = planner.plan(decode(1, 13), decode(2, 13))
    assert granted(reply) == [1, 2] and sorted(reply.waits) == sorted(d.transfer_id for d in reply.directives)


def test_jobs_that_run_soon_come_in_while_the_batch_computes() -> None:
    kv = create_proactive(device=12)
    planner = Planner(kv)
    swapped_out(planner, 1, 2)
    planner.plan(prefill(3, 4))
    request = PlanRequest(StepId(90), [decode(3, 5), decode(1, 13, 1.0), decode(2, 13, 2.0)],
                          completed=planner.completed, batch_limit=1, token_limit=100)  # fmt: skip
    reply = kv.plan(request)
    assert granted(reply) == [3] and [d.job_id for d in reply.directives] == [1, 2]


def test_blocks_are_freed_for_arrivals_by_the_jobs_that_run_last() -> None:
    planner = Planner(create_proactive(device=8, reserve=2))
    planner.plan(prefill(1, 12), prefill(2, 12))
    reply = planner.plan(decode(1, 13), holders=(Holder(JobId(2), 7.0),))
    assert granted(reply) == [1] and [d.job_id for d in reply.directives] == [2], "1 free, 2 wanted"
    assert reply.dropped == []


def test_a_job_that_was_brought_in_runs_before_it_goes_out_again() -> None:
    planner = Planner(create_proactive(device=8))
    swapped_out(planner, 1)
    planner.plan(prefill(2, 12))
    (back,) = planner.plan(decode(2, 13), decode(1, 13)).directives
    planner.kv.transfer_done(back.transfer_id, 0, 0)
    holders = (Holder(JobId(1), 50.0), Holder(JobId(2), 3.0))
    reply = planner.plan(prefill(3, 12), holders=holders)
    assert [d.job_id for d in reply.directives] == [2], "although 1 runs last"


# ---------------------------------------------------------------- copies that are kept


def test_the_second_swap_out_moves_only_what_was_written_since() -> None:
    planner = Planner(create_kv(device=6, host=8))
    planner.plan(prefill(1, 10))  # two full blocks and a half
    (out,) = planner.plan(prefill(2, 24), holders=(Holder(JobId(1), 1.0),)).directives
    planner.kv.transfer_done(out.transfer_id, 0, 0)
    (back,) = planner.plan(decode(1, 11)).directives
    planner.kv.transfer_done(back.transfer_id, 0, 0)
    assert planner.kv.occupancy()["host"]["cached"] == 3
    (again,) = planner.plan(prefill(2, 24), holders=(Holder(JobId(1), 1.0),)).directives
    assert again.blocks == 1 and again.moves[0].dst == out.moves[-1].dst + out.moves[-1].count - 1
    planner.kv.transfer_done(again.transfer_id, 0, 0)
    (back,) = planner.plan(decode(1, 12)).directives
    assert back.blocks == 3
    planner.kv.check()


def test_kept_copies_give_way_before_any_job_is_dropped() -> None:
    planner = Planner(create_kv(device=6, host=3))
    planner.plan(prefill(1, 12))
    (out,) = planner.plan(prefill(2, 24), holders=(Holder(JobId(1), 1.0),)).directives
    planner.kv.transfer_done(out.transfer_id, 0, 0)
    (back,) = planner.plan(decode(1, 13)).directives
    planner.kv.transfer_done(back.transfer_id, 0, 0)
    planner.plan(released=())
    planner.plan(prefill(3, 8))
    reply = planner.plan(prefill(4, 8), decode(1, 14), holders=(Holder(JobId(3), 5.0),))
    assert reply.dropped == [] and [d.job_id for d in reply.directives] == [3]
    planner.kv.check()


def test_without_reuse_no_copy_is_kept() -> None:
    planner = Planner(create_proactive(device=8, reuse=False))
    swapped_out(planner, 1)
    (back,) = planner.plan(decode(1, 13)).directives
    planner.kv.transfer_done(back.transfer_id, 0, 0)
    assert planner.kv.host.free == 16


# ---------------------------------------------------------------- defer


def test_deferred_jobs_wait_and_a_deadlock_is_ended_by_recomputing_the_last() -> None:
    planner = Planner(create_kv(device=4, mode="defer"))
    planner.plan(prefill(1, 8), prefill(2, 8))
    reply = planner.plan(decode(1, 9, 1.0), decode(2, 9, 2.0), prefill(3, 4))
    assert (granted(reply), reply.dropped, reply.directives) == ([1, 3], [2], [])


def test_a_plan_that_only_drops_calls_for_another() -> None:
    """The job that was dropped to end a deadlock was the only one that could have run."""
    planner = Planner(create_kv(device=4, mode="defer"))
    planner.plan(prefill(1, 16))
    reply = planner.plan(decode(1, 17))
    assert (granted(reply), reply.dropped) == ([], [1]) and reply.calls_for_another
    assert not planner.plan().calls_for_another


def test_a_deadlock_costs_those_first_that_could_not_run_anyway() -> None:
    planner = Planner(create_kv(device=4, mode="defer"))
    planner.plan(prefill(1, 12), prefill(2, 4))
    reply = planner.plan(decode(2, 5))
    assert (granted(reply), reply.dropped) == ([2], [1]), "although 2 has fewer tokens"


def test_out_of_a_deadlock_goes_on_who_has_the_most_tokens() -> None:
    """Else jobs that are ahead of it begin anew each time, and none ever gets to its next token."""
    planner = Planner(create_kv(device=4, mode="defer"))
    planner.plan(prefill(1, 8), prefill(2, 4), prefill(3, 4))
    reply = planner.plan(decode(2, 5, 1.0), decode(3, 5, 2.0), decode(1, 9, 3.0))
    assert (granted(reply), reply.dropped) == ([1], [3])
