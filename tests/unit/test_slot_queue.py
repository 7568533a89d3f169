"""Attempts that wait for slots: whatever becomes of them, each slot comes back once."""

from datetime import UTC, datetime

from evertick.domain.fairness import FairSlots, TenantCounts
from evertick.executor.handlers.registry import FunctionHandler
from evertick.executor.held_leases import HeldLeases
from evertick.executor.waiting import Order
from evertick.roles.dispatcher.slots import SlotQueue, WaitingForSlots
from evertick.store.lanes import Leased

AT = datetime(2026, 6, 9, 12, tzinfo=UTC)
TENANT = 1
TOTAL = 8


async def _deliver() -> None:
    """Nothing is sent here."""


def _order(seq: int, lease_id: int) -> Order:
    leased = Leased(
        *(1, seq, lease_id, 4, AT, AT, 1, "tick", 1, "job", None, "UTC", None, 60, "{}", None, None, None, False),
        tenant_id=TENANT,
    )
    held = HeldLeases(30.0)
    held.hold([lease_id], 0.0)
    lease = held.find(lease_id)
    assert lease is not None
    return leased, FunctionHandler("http", _deliver), lease, False


def _queue() -> tuple[SlotQueue, FairSlots]:
    slots = FairSlots(TOTAL, tenants=TenantCounts(2))
    return SlotQueue(slots, lambda: 0.0), slots


def test_an_attempt_that_was_leased_again_before_its_first_lease_was_found_lost_gives_back_both_slots() -> None:
    queue, slots = _queue()
    first, second = _order(5, lease_id=1), _order(5, lease_id=2)
    for order in (first, second):
        queue.append(order)
        assert queue
        assert queue.popleft() is order
    assert slots.held(TENANT) == 2
    for order in (first, second):
        queue.leave(order[0])
    assert slots.held(TENANT) == 0


def test_who_waits_in_line_gives_back_no_slot_of_the_same_attempt_that_runs() -> None:
    slots = FairSlots(TOTAL, tenants=TenantCounts(2))
    waiting = WaitingForSlots(slots, 1.0, lambda: 0.0)
    running, again = _order(5, lease_id=1), _order(5, lease_id=2)
    waiting.add(running)
    assert waiting.for_tasks
    waiting.for_tasks.popleft()
    waiting.add(again)
    assert waiting.take(lambda leased: leased.lease_id == 2) == [again[0]]
    assert slots.held(TENANT) == 1
