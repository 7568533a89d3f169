"""What commands read from the database, where a command that goes wrong would not end."""

from typing import Any

import pytest

from evertick.cli.backends.database import DatabaseBackend
from evertick.config.settings import Settings
from evertick.contract.events import EventStreamRequest
from evertick.domain.events import EventType
from evertick.runtime import events as runtime_events
from evertick.store.database import Pool
from evertick.store.tenants import events
from evertick.usecases.context import TenantContext
from evertick.usecases.jobs.create import create
from evertick.usecases.jobs.lifecycle import pause
from evertick.usecases.tenants.admission import TenantAdmission
from evertick.usecases.tenants.connections import ConnectionAccess
from evertick.usecases.tenants.events import put_stream
from hooked_pool import Run, hooked

JOB = {"schedule": "@daily", "target": {"type": "worker", "queue": "default", "handler": "send"}}


async def test_rare_events_are_found_behind_many_others(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_events, "MAX_LOOKED_AT", 1)
    tenant = TenantContext(pool, 1)
    await put_stream(tenant, EventStreamRequest())
    jobs = [await create(tenant, JOB) for _ in range(3)]
    await pause(tenant, jobs[-1].job_id)
    await events.give_positions(pool, 100)
    backend = DatabaseBackend(tenant, TenantAdmission(tenant), ConnectionAccess(Settings()))
    found = await backend.read_events(None, [EventType.JOB_PAUSED], 10)
    assert [event.type for event in found.items] == ["evertick.job.paused"]
    found = await backend.read_events(found.items[0].id, [EventType.JOB_PAUSED], 10)
    assert found == ([], False)


async def test_events_of_other_types_are_looked_at_once(pool: Pool) -> None:
    """Else whoever follows a rare type reads everything since the last one, again and again."""
    tenant = TenantContext(pool, 1)
    await put_stream(tenant, EventStreamRequest())
    job = await create(tenant, JOB)
    await events.give_positions(pool, 100)
    looks: list[int] = []

    async def look(run: Run, parameters: Any) -> Any:
        looks.append(parameters["after"])
        if len(looks) == 2:
            await pause(tenant, job.job_id)
            await events.give_positions(pool, 100)
        return await run()

    hooked_tenant = TenantContext(hooked(pool, "events.looked_until", look), 1)
    backend = DatabaseBackend(hooked_tenant, TenantAdmission(tenant), ConnectionAccess(Settings()))
    async for event in backend.follow_events(None, (EventType.JOB_PAUSED,)):
        assert event.type == "evertick.job.paused"
        break
    assert looks[0] < looks[1], "the job's creation is behind it"
