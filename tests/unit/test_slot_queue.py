"""Attempts that wait for slots: whatever becomes of them, each slot comes back once."""

import math
from datetime import UTC, datetime

from evertick.domain.fairness import FairSlots, TenantCounts
from evertick.executor.handlers.registry import FunctionHandler
from evertick.executor.held_leases import HeldLeases
from evertick.executor.waiting import Order
from evertick.roles.dispatcher.slots import SlotQueue, WaitingForSlots
from evertick.store.engine.lanes import Leased

AT = datetime(2026, 6, 9, 12, tzinfo=UTC)
TENANT = 1
TOTAL = 8


async def _deliver() -> None:
    """Nothing is sent here."""


def _order(seq: int, lease_id: int, tenant_id: int = TENANT) -> Order:
    leased = Leased(
        *(1, seq, lease_id, 4, AT, AT, 1, "tick", 1, "job", None, "UTC", None, 60, "{}", None, None, None, False),
        tenant_id=tenant_id,
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


def test_a_tenant_alone_in_the_queue_gets_its_slots_together_and_no_more_than_it_may_have() -> None:
    queue, slots = _queue()
    orders = [_order(seq, lease_id=1) for seq in range(TOTAL)]
    queue.extend(orders)
    most = slots.most(TENANT)
    assert 1 < most < TOTAL
    assert queue.pop_some(TOTAL, math.inf) == orders[:most]
    assert not queue
    assert (slots.held(TENANT), queue.waiting(TENANT)) == (most, TOTAL - most)
    queue.leave_all([order[0] for order in orders])
    assert slots.held(TENANT) == 0


def test_tenants_that_wait_beside_each_other_take_turns() -> None:
    slots = FairSlots(TOTAL, tenants=TenantCounts(2))
    waiting = WaitingForSlots(slots, 1.0, lambda: 0.0)
    waiting.add_all([_order(seq, lease_id=tenant_id, tenant_id=tenant_id) for tenant_id in (1, 2) for seq in range(2)])
    assert [order[0].tenant_id for order in waiting.next_tasks(TOTAL, math.inf)] == [1, 2, 1, 2]


def test_as_many_start_as_their_budget_allows() -> None:
    waiting = WaitingForSlots(FairSlots(TOTAL), 1.0, lambda: 0.0)
    waiting.add_all([_order(seq, lease_id=1) for seq in range(TOTAL)])
    assert [len(waiting.next_tasks(TOTAL, budget)) for budget in (2.5, 2, 0)] == [3, 2, 0]
    assert len(waiting) == TOTAL - 5


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


def test_while_it_rests_only_tenants_with_few_waiting_may_start() -> None:
    now = 100.0
    slots = FairSlots(64, tenants=TenantCounts(2))
    queue = SlotQueue(slots, lambda: now, delay_of=lambda _: 1.0)
    many, few = TENANT, TENANT + 1
    for seq in range(40):
        queue.append(_order(seq, lease_id=seq, tenant_id=many))
    for seq in range(100, 104):  # each is late beside the others
        now += 0.2
        queue.append(_order(seq, lease_id=seq, tenant_id=few))
        while queue.popleft()[0].tenant_id != few:
            pass
        queue.leave(_order(seq, lease_id=seq, tenant_id=few)[0])
    assert queue
    rest = queue.rest_after(0.02)
    assert 0 < rest <= 0.02
    assert not queue
    queue.append(_order(200, lease_id=200, tenant_id=few))
    assert queue
    assert queue.popleft()[0].tenant_id == few
    assert not queue
    now += 2 * rest
    assert queue
    assert len(queue) == sum(1 for _ in queue)


def test_turns_for_many_small_tenants_do_not_prolong_a_rest() -> None:
    now = 100.0
    slots = FairSlots(1000, tenants=TenantCounts(200))
    queue = SlotQueue(slots, lambda: now, delay_of=lambda _: 1.0)
    large, started, seq = TENANT, 0, 1000
    for number in range(900):
        queue.append(_order(number, lease_id=number, tenant_id=large))
    for turn in range(1000):
        now += 0.001
        for small in range(4):  # each turn has as much of small tenants as it starts
            seq += 1
            queue.append(_order(seq, lease_id=seq, tenant_id=2 + (4 * turn + small) % 100))
        for _ in range(4):
            if queue:
                order = queue.popleft()
                queue.leave(order[0])
                started += order[0].tenant_id == large
        queue.rest_after(0.001)
    assert started > 20
