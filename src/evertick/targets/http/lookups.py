"""Shares out the lookups of names among tenants, so that one whose names hang leaves the others room to look up theirs.

A lookup counts until it ends, even if nobody waits for it any more: its thread and its query are still there.
"""

import asyncio
from collections.abc import Callable

from evertick.domain.fairness import Tenants
from evertick.targets.http.resolution import MAX_LOOKUPS, Resolve
from evertick.targets.http.slots import Busy, Slots, one_tenant

MAX_PER_TENANT = 64
WAIT_SECONDS = 2.0
"""For so long a name may wait for its turn; then its delivery has to come again later."""


class TooManyLookups(Exception):  # noqa: N818 - says what happened
    """A tenant's name did not get its turn. Nothing was looked up."""


class Lookups:
    """Resolves names, so many at once for each tenant. Who asks for a name that is being looked up, for whomever,
    shares the answer.
    """

    def __init__(
        self,
        resolve: Resolve,
        tenants: Callable[[], Tenants] = one_tenant,
        *,
        most_per_tenant: int = MAX_PER_TENANT,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._resolve = resolve
        self._turns: Slots[None] = Slots(MAX_LOOKUPS, most_per_tenant, wait_seconds, tenants)
        self._under_way: dict[str, asyncio.Future[list[str]]] = {}

    async def __call__(self, name: str, tenant_id: int) -> list[str]:
        lookup = self._under_way.get(name)
        if lookup is None:
            await self._take_turn(tenant_id)
            lookup = self._under_way.get(name)
            if lookup is None:
                lookup = self._begin(name, tenant_id)
            else:  # another was faster
                self._turns.give_back(None, tenant_id)
        return await asyncio.shield(lookup)

    async def _take_turn(self, tenant_id: int) -> None:
        try:
            await self._turns.take(None, tenant_id)
        except Busy:
            raise TooManyLookups from None

    def _begin(self, name: str, tenant_id: int) -> asyncio.Future[list[str]]:
        def end(ended: asyncio.Future[list[str]]) -> None:
            del self._under_way[name]
            self._turns.give_back(None, tenant_id)
            # All who asked may have gone; a failure that nobody looks at would be reported as a bug.
            if not ended.cancelled():
                ended.exception()

        lookup = self._under_way[name] = asyncio.ensure_future(self._resolve(name))
        lookup.add_done_callback(end)
        return lookup
