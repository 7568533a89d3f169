"""Shares out a dispatcher's places, so that neither a host nor a tenant whose targets hang leaves the others none.

Each host has its slots, each tenant a share of all places. Who finds them taken waits for a moment; if in vain, all
else of that host or tenant does not even wait, until one of its deliveries ends.
"""

from evertick.roles.dispatcher.jams import Jams, host_of
from evertick.targets.http.delivery import HttpDelivery
from evertick.targets.http.request import DeliveryRequest
from evertick.targets.http.slots import Busy, Slots
from evertick.targets.http.verdict import NotTried, Verdict

SHARE = 3 / 4
"""So much of all places one tenant may hold, where there are others."""


class Shares:
    """Delivers, as far as the places of host and tenant allow."""

    def __init__(self, delivery: HttpDelivery, places: int, wait_seconds: float) -> None:
        self._delivery = delivery
        self._jams = Jams()
        self._tenants: Slots[int] = Slots(max(1, int(places * SHARE)), wait_seconds)

    async def deliver(self, request: DeliveryRequest, deadline_seconds: float, *, is_alone: bool) -> Verdict:
        """Deliver; a tenant that is alone may have all places."""
        if self._jams.holds(host_of(request.target.url)):
            return NotTried("not tried: others have just waited for its host in vain")
        if is_alone:
            return await self._send(request, deadline_seconds)
        tenant_id = request.tenant_id
        if self._jams.holds(tenant_id):
            return NotTried("not tried: others of its tenant have just waited for a place in vain")
        try:
            await self._tenants.take(tenant_id)
        except Busy:
            self._jams.begin(tenant_id)
            return NotTried(f"not tried: {self._tenants.per_place} deliveries of its tenant were running")
        try:
            return await self._send(request, deadline_seconds)
        finally:
            self._tenants.give_back(tenant_id)
            self._jams.end(tenant_id)

    async def _send(self, request: DeliveryRequest, deadline_seconds: float) -> Verdict:
        verdict = await self._delivery.deliver(request, deadline_seconds)
        host = host_of(request.target.url)
        if not isinstance(verdict, NotTried):
            self._jams.end(host)
        elif verdict.is_host_busy:
            self._jams.begin(host)
        return verdict
