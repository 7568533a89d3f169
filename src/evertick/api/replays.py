"""Replays of many dead letters, at a rate: tasks in the background, one for each tenant at a time."""

import asyncio
import logging
from collections.abc import Callable

from evertick.store.database import is_transient
from evertick.store.tenants import TenantRow
from evertick.usecases.context import Tenant
from evertick.usecases.dead_letters import Chosen, replay_letters

logger = logging.getLogger("evertick.api")


class Replays:
    """What is being replayed here. Whatever is not replayed when the process ends is a dead letter still."""

    def __init__(self, acting_for: Callable[[TenantRow], Tenant]) -> None:
        self._acting_for = acting_for
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def is_busy(self, tenant: TenantRow) -> bool:
        return tenant.tenant_id in self._tasks

    def go_on(self, tenant: TenantRow, chosen: Chosen, rate_per_second: float) -> None:
        task = asyncio.create_task(self._replay(self._acting_for(tenant), chosen, rate_per_second))
        self._tasks[tenant.tenant_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(tenant.tenant_id, None))

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _replay(self, tenant: Tenant, chosen: Chosen, rate_per_second: float) -> None:
        portion = max(1, int(rate_per_second))
        pause = portion / rate_per_second
        replayed = portion
        while replayed == portion:
            await asyncio.sleep(pause)
            try:
                replayed = len(await replay_letters(tenant, chosen, portion))
            except Exception as error:
                if not is_transient(error):
                    logger.exception("a replay of dead letters ends early")
                    return
