"""How much a dispatcher leases of each tenant: alone what it does in a second, less while others have work."""

from evertick.domain.fairness import FairSlots, TenantCounts
from evertick.roles.dispatcher.slots import DeliveryCounts, SlotQueue
from evertick.roles.dispatcher.tenants import SHARED_DIVISOR, Keyring, TenantQueues
from evertick.store.database import Pool
from evertick.store.tenants.secrets import Seal

SLOTS = 256
SIZE = 8192
DID = 4_000
LARGE, SMALL = 1, 2  # queues, and their tenants


async def _look(_: Pool) -> None:
    """Nothing is looked up here."""


def rooms(*with_work: int) -> dict[int, int]:
    slots = FairSlots(SLOTS, tenants=TenantCounts(2))
    delivered = DeliveryCounts()
    for _ in range(DID):
        delivered.count(LARGE)
    keyring = Keyring(Seal(["00" * 32]))
    queues = TenantQueues(keyring, slots, SlotQueue(slots, lambda: 0.0), delivered, _look)
    queues.with_work = {queue_id: queue_id for queue_id in with_work}
    return queues.rooms(SIZE, 0)


def test_alone_a_tenant_has_waiting_what_it_did_last() -> None:
    assert rooms(LARGE)[LARGE] >= DID


def test_beside_others_a_tenant_has_little_waiting_and_each_of_them_has_room() -> None:
    found = rooms(LARGE, SMALL)
    assert DID // SHARED_DIVISOR < found[LARGE] <= DID // SHARED_DIVISOR + SLOTS
    assert found[SMALL] > 0
