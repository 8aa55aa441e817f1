import asyncio

import pytest

from services.stage.transport.credits import Credits, EpochOver, Window
from shared.errors import ActivationLost
from shared.ids import StepId


def step(number: int) -> StepId:
    return StepId(number)


async def blocked(credits: Credits, number: int, size: int) -> asyncio.Task[None]:
    """A taker that has to wait."""
    task = asyncio.create_task(credits.take(step(number), size))
    await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_a_slow_receiver_bounds_what_is_on_its_way() -> None:
    credits = Credits(count=2, size=100)
    await credits.take(step(1), 60)
    by_bytes = await blocked(credits, 2, 60)
    assert credits.bytes == 60
    credits.release(step(1))
    await by_bytes
    await credits.take(step(3), 40)
    by_count = await blocked(credits, 4, 0)
    credits.release(step(2))
    await by_count


async def test_an_activation_larger_than_the_bound_goes_alone() -> None:
    credits = Credits(count=8, size=100)
    await credits.take(step(1), 1000)
    waiting = await blocked(credits, 2, 1)
    credits.release(step(1))
    await waiting


async def test_a_lost_acknowledgement_is_made_up_for_by_the_next() -> None:
    credits = Credits(count=8, size=100)
    for number in (1, 2, 5):
        await credits.take(step(number), 10)
    credits.release(step(2))
    assert credits.bytes == 10


async def test_what_was_not_sent_gives_its_own_room_back() -> None:
    credits = Credits(count=8, size=100)
    await credits.take(step(1), 10)
    await credits.take(step(2), 20)
    credits.give_back(step(2))
    assert credits.bytes == 10


async def test_a_new_epoch_ends_all_waiting_and_starts_empty() -> None:
    credits = Credits(count=1, size=100)
    await credits.take(step(9), 10)
    waiting = await blocked(credits, 10, 10)
    credits.reset()
    with pytest.raises(EpochOver):
        await waiting
    await credits.take(step(1), 100)  # step ids start over
    assert credits.bytes == 100


async def test_a_window_moves_with_what_arrives() -> None:
    window = Window(step(1), limit=2)
    for _ in range(2):
        await window.take(timeout=5)
    third = asyncio.create_task(window.take(timeout=5))
    await asyncio.sleep(0)
    assert not third.done()
    window.arrived(1)
    await third


async def test_a_window_that_does_not_move_is_an_error_with_the_key_to_change() -> None:
    window = Window(step(3), limit=1)
    await window.take(timeout=5)
    with pytest.raises(ActivationLost, match=r"step 3: none of 1 pieces .*stage\.transfer_timeout_s"):
        await window.take(timeout=0.01)


async def test_a_closed_window_ends_all_waiting() -> None:
    window = Window(step(3), limit=1)
    await window.take(timeout=5)
    waiting = asyncio.create_task(window.take(timeout=5))
    await asyncio.sleep(0)
    window.close()
    with pytest.raises(EpochOver):
        await waiting
