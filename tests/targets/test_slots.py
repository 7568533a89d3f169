"""Slots of a place: given in order, waited for only so long, never lost."""

import asyncio

import pytest

from evertick.targets.egress.slots import Busy, Slots

LONG = 120.0


async def turn() -> None:
    """Let all tasks go as far as they can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_slots_are_given_in_the_order_of_asking() -> None:
    slots: Slots[str] = Slots(1, 1, LONG)
    order: list[int] = []

    async def hold(number: int) -> None:
        await slots.take("a", 1)
        order.append(number)
        await asyncio.sleep(0)
        slots.give_back("a", 1)

    await asyncio.gather(*(hold(number) for number in range(5)))
    assert order == [0, 1, 2, 3, 4]
    assert len(slots) == 0


async def test_who_waits_in_vain_is_told_so_and_leaves_nothing_behind() -> None:
    slots: Slots[str] = Slots(1, 1, 0.01)
    await slots.take("a", 1)
    with pytest.raises(Busy):
        await slots.take("a", 1)
    await slots.take("b", 1)
    slots.give_back("a", 1)
    slots.give_back("b", 1)
    assert len(slots) == 0


async def test_who_is_cancelled_while_waiting_does_not_take_a_slot_along() -> None:
    slots: Slots[str] = Slots(1, 1, LONG)
    await slots.take("a", 1)
    first, second = (asyncio.create_task(slots.take("a", 1)) for _ in range(2))
    await turn()
    first.cancel()
    slots.give_back("a", 1)
    await second
    slots.give_back("a", 1)
    assert len(slots) == 0


async def test_the_last_who_gives_up_leaves_nothing_behind_though_the_slot_came_back_meanwhile() -> None:
    slots: Slots[str] = Slots(1, 1, LONG)
    await slots.take("a", 1)
    waiting = asyncio.create_task(slots.take("a", 1))
    await turn()
    waiting.cancel()
    slots.give_back("a", 1)
    await turn()
    assert waiting.cancelled()
    assert len(slots) == 0


async def test_a_slot_that_comes_just_at_the_cancellation_goes_on_to_the_next() -> None:
    slots: Slots[str] = Slots(1, 1, LONG)
    await slots.take("a", 1)
    first, second = (asyncio.create_task(slots.take("a", 1)) for _ in range(2))
    await turn()
    slots.give_back("a", 1)  # the first has it, but does not know yet
    first.cancel()
    async with asyncio.timeout(LONG):
        await second
    assert first.cancelled()
    slots.give_back("a", 1)
    assert len(slots) == 0
