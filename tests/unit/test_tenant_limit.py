"""How much a tenant has under way at once, how much waits for that, and for how long."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from evertick.runtime.tenant_limit import LimitReached, TenantLimit


async def test_others_do_not_wait_for_who_has_all_of_its_own() -> None:
    limit = TenantLimit(1)
    async with limit.slot(1), limit.slot(2):
        waiting = asyncio.create_task(_use(limit, 1))
        await asyncio.sleep(0)
        assert not waiting.done()
    await waiting


async def test_no_more_than_so_many_wait() -> None:
    limit = TenantLimit(1, max_waiting=1)
    async with limit.slot(1):
        waiting = asyncio.create_task(_use(limit, 1))
        await asyncio.sleep(0)
        with pytest.raises(LimitReached):
            await _use(limit, 1)
        await _use(limit, 2)
    await waiting
    await _use(limit, 1)


async def test_nobody_waits_longer_than_it_is_worth() -> None:
    limit = TenantLimit(2, wait_seconds=0.01)
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(limit.slot(1))
        with pytest.raises(LimitReached):
            await _use(limit, 1)
    await _use(limit, 1)


async def test_a_place_in_line_is_free_again_when_its_client_left() -> None:
    limit = TenantLimit(1, max_waiting=1)
    async with limit.slot(1):
        waiting = asyncio.create_task(_use(limit, 1))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        another = asyncio.create_task(_use(limit, 1))
        await asyncio.sleep(0)
        assert not another.done()
    await another


async def _use(limit: TenantLimit, tenant_id: int) -> None:
    async with limit.slot(tenant_id):
        pass
