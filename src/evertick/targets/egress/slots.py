"""Limits how many deliveries of a tenant use one resource at once, such as a host, and how many of all tenants.

A tenant whose deliveries hang keeps its own slots; the others have theirs (`domain.fairness`).
"""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from evertick.domain.fairness import ALONE, FairSlots, TenantCounts

_K = TypeVar("_K")


class Busy(Exception):  # noqa: N818 - says what happened
    """No slot came free in time."""


class _Resource:
    __slots__ = ("giving_up", "slots", "waiting")

    def __init__(self, slots: FairSlots) -> None:
        self.slots = slots
        self.waiting: dict[asyncio.Future[None], tuple[int, float]] = {}  # tenant and end, in the order of asking
        self.giving_up: asyncio.TimerHandle | None = None  # at the first end


def one_tenant() -> TenantCounts:
    """The tenants where there is one."""
    return ALONE


class Slots(Generic[_K]):
    """`total` slots for each resource, `most_each` for each of `tenants()`; to a tenant they are given in the order of
    asking. A resource that is not in use takes no memory.
    """

    def __init__(
        self, total: int, most_each: int, wait_seconds: float, tenants: Callable[[], TenantCounts] = one_tenant
    ) -> None:
        self._total = total
        self._most_each = most_each
        self._wait_seconds = wait_seconds
        self._tenants = tenants
        self._resources: dict[_K, _Resource] = {}

    def __len__(self) -> int:
        return len(self._resources)

    async def take(self, key: _K, tenant_id: int) -> None:
        """Wait for a slot; Busy when none comes free. The caller gives it back."""
        resource = self._resources.get(key)
        tenants = self._tenants()
        if resource is None:
            resource = self._resources[key] = _Resource(FairSlots(self._total, self._most_each, tenants))
        elif resource.slots.tenants != tenants:
            resource.slots.share(tenants)
        if resource.slots.may_take(tenant_id):
            resource.slots.take(tenant_id)
        else:
            await self._wait(key, resource, tenant_id)

    def give_back(self, key: _K, tenant_id: int) -> None:
        """Give it to the first that waits and may take it."""
        resource = self._resources[key]
        resource.slots.give_back(tenant_id)
        while resource.waiting and resource.slots.free:
            turn = _first(resource)
            if turn is None:
                break
            resource.slots.take(resource.waiting.pop(turn)[0])
            turn.set_result(None)
        self._forget_if_unused(key, resource)

    async def _wait(self, key: _K, resource: _Resource, tenant_id: int) -> None:
        # Not with a semaphore and a timeout, which cost a delivery several times as much. All have one timer.
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        end = loop.time() + self._wait_seconds
        resource.waiting[turn] = tenant_id, end
        if resource.giving_up is None:
            resource.giving_up = loop.call_at(end, _give_up, resource)
        try:
            await turn
        except BaseException:
            resource.waiting.pop(turn, None)
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.give_back(key, tenant_id)  # it came just when we were cancelled
            else:
                self._forget_if_unused(key, resource)  # the last slot may have come back before we left
            raise

    def _forget_if_unused(self, key: _K, resource: _Resource) -> None:
        if not resource.slots and not resource.waiting and self._resources.get(key) is resource:
            del self._resources[key]
            if resource.giving_up is not None:
                resource.giving_up.cancel()


def _first(resource: _Resource) -> asyncio.Future[None] | None:
    """The first that waits and may take a slot."""
    for turn, (tenant_id, _) in resource.waiting.items():
        if not turn.done() and resource.slots.may_take(tenant_id):
            return turn
    return None


def _give_up(resource: _Resource) -> None:
    """End those that waited for long enough, and come back for the next."""
    loop = asyncio.get_running_loop()
    now, resource.giving_up = loop.time(), None
    for turn, (_, end) in resource.waiting.items():
        if turn.done():
            continue
        if end > now:
            resource.giving_up = loop.call_at(end, _give_up, resource)
            return
        turn.set_exception(Busy())
