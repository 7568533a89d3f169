"""What commands read from the database, where a command that goes wrong would not end."""

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


async def test_rare_events_are_found_behind_many_others(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_events, "MAX_LOOKED_AT", 1)
    tenant = TenantContext(pool, 1)
    await put_stream(tenant, EventStreamRequest())
    target = {"type": "worker", "queue": "default", "handler": "send"}
    jobs = [await create(tenant, {"schedule": "@daily", "target": target}) for _ in range(3)]
    await pause(tenant, jobs[-1].job_id)
    await events.give_positions(pool, 100)
    backend = DatabaseBackend(tenant, TenantAdmission(tenant), ConnectionAccess(Settings()))
    found = await backend.read_events(None, [EventType.JOB_PAUSED], 10)
    assert [event.type for event in found.items] == ["evertick.job.paused"]
    found = await backend.read_events(found.items[0].id, [EventType.JOB_PAUSED], 10)
    assert found == ([], False)
