"""Attempts that wait for places: whatever becomes of them, each place comes back once."""

from datetime import UTC, datetime, timedelta

from evertick.domain.fair_slots import FairSlots, Tenants
from evertick.roles.dispatcher.waiting import PlaceQueue, WaitingForPlaces
from evertick.roles.worker.handlers import Handler
from evertick.roles.worker.holdings import Holdings
from evertick.roles.worker.waiting import Order
from evertick.store.lanes import Leased, Range

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
    holdings = Holdings(timedelta(seconds=30))
    holdings.hold([Range(lease_id, 1, seq, seq, 1)], 0.0)
    lease = holdings.find(lease_id)
    assert lease is not None
    return leased, Handler("http", _deliver), lease, False


def _queue() -> tuple[PlaceQueue, FairSlots]:
    places = FairSlots(TOTAL, tenants=Tenants(2))
    return PlaceQueue(places, lambda: 0.0), places


def test_an_attempt_that_was_leased_again_before_its_first_lease_was_found_lost_gives_back_both_places() -> None:
    queue, places = _queue()
    first, second = _order(5, lease_id=1), _order(5, lease_id=2)
    for order in (first, second):
        queue.append(order)
        assert queue
        assert queue.popleft() is order
    assert places.held(TENANT) == 2
    for order in (first, second):
        queue.leave(order[0])
    assert places.held(TENANT) == 0


def test_who_waits_in_line_gives_back_no_place_of_the_same_attempt_that_runs() -> None:
    places = FairSlots(TOTAL, tenants=Tenants(2))
    waiting = WaitingForPlaces(places, lambda: 0.0)
    running, again = _order(5, lease_id=1), _order(5, lease_id=2)
    waiting.add(running)
    assert waiting.for_tasks
    waiting.for_tasks.popleft()
    waiting.add(again)
    assert waiting.take(lambda leased: leased.lease_id == 2) == [again[0]]
    assert places.held(TENANT) == 1
