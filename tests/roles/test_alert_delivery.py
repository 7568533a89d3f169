"""Notices from the alert to the receiver, by a real scheduler and a real dispatcher."""

import json

import asyncpg
import pytest
from standardwebhooks import Webhook

from evertick.contract.alerts import AlertTargetRequest, Notice
from evertick.roles.janitor.alerting import Alerting
from evertick.roles.scheduler import Scheduler
from evertick.store.database import Pool
from evertick.usecases.context import TenantContext
from evertick.usecases.jobs.create import create
from evertick.usecases.jobs.lifecycle import pause
from evertick.usecases.tenants import alerts, secrets
from roles.dispatching import SEAL, PostOffice, Receiver


@pytest.fixture
def tenant(pool: Pool) -> TenantContext:
    return TenantContext(pool, 1)


async def overdue_job(connection: asyncpg.Connection, tenant: TenantContext) -> str:
    """A job that should have succeeded long ago."""
    job = await create(
        tenant, {"schedule": "manual", "target": {"type": "worker", "handler": "send"}, "must_succeed_within": "1h"}
    )
    await connection.execute("UPDATE jobs SET created_at = created_at - interval '2 hours' WHERE name = $1", job.name)
    return job.job_id


async def look_again(connection: asyncpg.Connection, pool: Pool) -> None:
    """A janitor that has just started looks, though none is due to."""
    await connection.execute("UPDATE alert_looks SET next_at = '-infinity'")
    await Alerting(pool).step()


async def test_a_receiver_gets_signed_notices_of_an_alert_and_of_its_end(  # noqa: PLR0917 - fixtures
    connection: asyncpg.Connection,
    pool: Pool,
    tenant: TenantContext,
    node: Scheduler,
    office: PostOffice,
    receiver: Receiver,
) -> None:
    await alerts.put_target(tenant, AlertTargetRequest(url=receiver.url, headers={"X-Team": "night"}))
    job_id = await overdue_job(connection, tenant)
    await look_again(connection, pool)
    receiver.will_answer(500)
    await node.fire_due()
    await office.deliver()
    await pause(tenant, job_id)
    await look_again(connection, pool)
    # The first is tried again before the second is sent.
    await connection.execute("UPDATE timers SET due_at = clock_at() WHERE kind = 'retry'")
    for _ in range(2):
        await node.fire_due()
        await office.deliver()
        await look_again(connection, pool)
    secret = (await secrets.show(tenant, SEAL)).current
    said = [Webhook(secret).verify(each.body, each.headers) for each in receiver.received]
    assert [each["type"] for each in said] == ["alert.opened", "alert.opened", "alert.closed"]
    assert said[0] == said[1]
    assert len({each.headers["webhook-id"] for each in receiver.received}) == 2
    assert all(set(each) == set(Notice.__struct_fields__) for each in said)
    assert (said[0]["job_id"], said[0]["condition"], said[2]["close_reason"]) == (job_id, "no_success", "paused")
    assert [each.headers["x-team"] for each in receiver.received] == ["night"] * 3
    (alert,) = (await alerts.list_alerts(tenant)).items
    assert (alert.status, alert.notice_status) == ("closed", "delivered")


async def test_a_janitor_that_dies_while_it_makes_a_notice_leaves_it_to_the_next(
    connection: asyncpg.Connection, pool: Pool, tenant: TenantContext
) -> None:
    await alerts.put_target(tenant, AlertTargetRequest(url="https://hooks.example.invalid/alerts"))
    await overdue_job(connection, tenant)

    await connection.execute(
        "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'it is gone'; END $$;"
        "CREATE TRIGGER dies BEFORE UPDATE OF is_told_open ON alerts EXECUTE FUNCTION die()"
    )
    with pytest.raises(asyncpg.RaiseError):
        await Alerting(pool).step()
    await connection.execute("DROP TRIGGER dies ON alerts")
    assert await connection.fetchval("SELECT count(*) FROM requested_runs") == 0
    for _ in range(2):
        await look_again(connection, pool)
    (payload,) = await connection.fetch("SELECT payload FROM requested_runs")
    assert json.loads(payload["payload"])["type"] == "alert.opened"
