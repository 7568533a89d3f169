"""Signatures that others verify, secrets that rotate, and keys that do not fit."""

import logging

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from engine import until
from evertick.store.database import Pool
from evertick.store.tenants.secrets import CannotUnseal, Seal
from evertick.usecases.context import TenantContext
from evertick.usecases.tenants import secrets
from roles.dispatching import SEAL, PostOffice, Received, Receiver


@pytest.fixture
def tenant(pool: Pool) -> TenantContext:
    return TenantContext(pool, 1)


def verifies(secret: str | None, received: Received) -> bool:
    assert secret is not None
    try:
        Webhook(secret).verify(received.body, received.headers)
    except WebhookVerificationError:
        return False
    return True


async def test_a_delivery_is_signed_with_a_secret_that_is_made_at_first_use(
    office: PostOffice, receiver: Receiver, tenant: TenantContext
) -> None:
    await office.posted(receiver.url, payload={"n": 1})
    await office.deliver()
    (received,) = receiver.received
    found = await secrets.show(tenant, SEAL)
    assert verifies(found.current, received)
    assert not verifies(found.current, received._replace(body=b'{"n":2}'))


async def test_during_a_rotation_either_secret_verifies(
    office: PostOffice, receiver: Receiver, tenant: TenantContext
) -> None:
    old = (await secrets.show(tenant, SEAL)).current
    new = (await secrets.rotate(tenant, SEAL)).current
    await office.posted(receiver.url)
    await office.deliver()
    await secrets.drop_previous(tenant, SEAL)
    await office.posted(receiver.url)
    await office.deliver()
    during, after = receiver.received
    assert (verifies(old, during), verifies(new, during)) == (True, True)
    assert len(during.headers["webhook-signature"].split(" ")) == 2
    assert (verifies(old, after), verifies(new, after)) == (False, True)


async def test_a_running_dispatcher_feels_a_rotation_and_finds_new_tenants(
    office: PostOffice, receiver: Receiver, tenant: TenantContext, pool: Pool
) -> None:
    job = await office.posted(receiver.url)
    dispatcher = office.dispatcher()
    await dispatcher.start()
    await office.until_ended(job)
    rotated = await secrets.rotate(tenant, SEAL)
    newcomer = await office.add_tenant("newcomer")
    other = await office.posted(receiver.url, tenant_id=newcomer)
    await office.until_ended(other)
    # It has looked for the newcomer's queue since the rotation.
    again = await office.posted(receiver.url)
    await office.until_ended(again)
    await dispatcher.stop()
    theirs = await secrets.show(TenantContext(pool, newcomer), SEAL)
    _, second, third = receiver.received
    assert (verifies(theirs.current, second), verifies(rotated.current, second)) == (True, False)
    assert verifies(rotated.current, third)


async def test_a_dispatcher_with_another_key_does_not_start(
    office: PostOffice, receiver: Receiver, tenant: TenantContext
) -> None:
    await office.posted(receiver.url)
    await secrets.show(tenant, SEAL)
    with pytest.raises(CannotUnseal, match="EVERTICK_SECRET_KEY"):
        await office.dispatcher(seal=Seal("quite another key, of another installation")).start()
    assert await office.leases() == 0


async def test_a_tenant_whose_secrets_cannot_be_read_keeps_its_attempts(
    office: PostOffice, receiver: Receiver, pool: Pool
) -> None:
    mine = await office.posted(receiver.url)
    dispatcher = office.dispatcher()
    await dispatcher.start()
    await office.until_ended(mine)
    stranger = await office.add_tenant("stranger")
    await secrets.show(TenantContext(pool, stranger), Seal("quite another key, of another installation"))
    theirs = await office.posted(receiver.url, tenant_id=stranger)

    async def has_looked() -> bool:
        return stranger in dispatcher.keyring.unreadable

    await until(has_looked)
    await office.until_ended(await office.posted(receiver.url))
    await dispatcher.stop()
    assert await office.outcomes(theirs) == []
    assert len(receiver.received) == 2


async def test_no_secret_payload_or_url_gets_into_the_log(
    office: PostOffice, receiver: Receiver, tenant: TenantContext, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    rotated = await secrets.rotate(tenant, SEAL)
    receiver.will_answer(500)
    receiver.will_answer(410)
    job = await office.posted(f"{receiver.url}?token=t0ken", payload={"password": "pa55word"}, count=2)
    dispatcher = office.dispatcher()
    await dispatcher.start()
    await office.until_ended(job, 2)
    await dispatcher.stop()
    shown = "\n".join((caplog.text, repr(rotated), repr(dispatcher.keyring.__dict__)))
    assert "answered 500" in shown
    for secret in (rotated.current, rotated.previous, "t0ken", "pa55word"):
        assert secret is not None
        assert secret.removeprefix("whsec_") not in shown
