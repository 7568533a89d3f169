"""How much a dispatcher leases of each tenant: alone what it does in a second, less while others have work."""

from types import SimpleNamespace
from typing import Any, cast

from evertick.domain.fairness import FairSlots, TenantCounts
from evertick.roles.dispatcher.slots import DeliveryCounts, SlotQueue
from evertick.roles.dispatcher.tenants import SHARED_DIVISOR, Keyring, TenantQueues
from evertick.store.statements import Connection
from evertick.store.tenants.secrets import Seal

SLOTS = 256
SIZE = 8192
DID = 4_000
LARGE, SMALL = 1, 2  # queues, and their tenants


async def _look(_: Connection) -> None:
    """Nothing is looked up here."""


def tenant_queues(*with_work: int, here: int = 0) -> TenantQueues:
    """Of tenants of which so many attempts of the large one are here."""
    slots = FairSlots(SLOTS, tenants=TenantCounts(2))
    delivered = DeliveryCounts()
    delivered.add([LARGE] * DID)
    waiting = SlotQueue(slots, lambda: 0.0)
    for _ in range(here):
        waiting.append((cast("Any", SimpleNamespace(tenant_id=LARGE)), cast("Any", None), cast("Any", None), False))
    queues = TenantQueues(Keyring(Seal(["00" * 32]), _look), slots, waiting, delivered)
    queues.with_work = {queue_id: queue_id for queue_id in with_work}
    return queues


def rooms(*with_work: int) -> dict[int, int]:
    return tenant_queues(*with_work).rooms(SIZE, 0)


def test_alone_a_tenant_has_waiting_what_it_did_last() -> None:
    assert rooms(LARGE)[LARGE] >= DID


def test_beside_others_a_tenant_has_little_waiting_and_each_of_them_has_room() -> None:
    found = rooms(LARGE, SMALL)
    assert DID // SHARED_DIVISOR < found[LARGE] <= DID // SHARED_DIVISOR + SLOTS
    assert found[SMALL] > 0


def test_tenants_of_which_nothing_is_here_are_idle_while_others_are_not() -> None:
    both = {LARGE: 100, SMALL: 10}
    assert tenant_queues(LARGE, SMALL, here=1).idle(both) == {SMALL: 10}
    assert tenant_queues(LARGE, SMALL).idle(both) == {}
    assert tenant_queues(LARGE, here=1).idle({LARGE: 100}) == {}
