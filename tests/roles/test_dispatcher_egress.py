"""Loopback and plain http are open by default to one tenant on one machine, and to nobody else."""

import logging
from functools import partial
from pathlib import Path

import pytest

from cli.processes import evertick
from engine import until
from evertick.config import Settings
from evertick.domain.attempt import Failed, Succeeded
from evertick.roles.dispatcher import Dispatcher
from evertick.roles.dispatcher.settings import LOOPBACK, egress_of
from evertick.store.database import Pool
from evertick.targets.http.guard import EgressPolicy
from evertick.usecases.doctor import examine
from roles.dispatching import SEAL, PostOffice, Receiver
from targets.receivers import LONG, Log, attempt, delivering, serving

OPEN, CLOSED = EgressPolicy(LOOPBACK, allow_http=True), EgressPolicy()
ELSEWHERE = "postgresql://db/evertick"


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        *(("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("[::1]", True), ("localhost", True)),
        *(("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("evertick.internal", False)),
    ],
)
@pytest.mark.parametrize("database_url", [None, ELSEWHERE])
@pytest.mark.parametrize("tenants", [1, 2, 50])
def test_this_machine_is_open_only_while_all_three_hold(
    host: str, *, is_local: bool, database_url: str | None, tenants: int
) -> None:
    egress = egress_of(Settings(host=host, database_url=database_url), tenants)
    is_open = is_local and database_url is None and tenants == 1
    assert egress.policy == (OPEN if is_open else CLOSED)
    assert ("this machine (loopback) and over plain http, as long as" in egress.words) == is_open
    assert (f"the API listens on {host}" in egress.words) == (not is_local)
    assert ("the server is not the embedded one" in egress.words) == (database_url is not None)
    assert ("there is more than one tenant" in egress.words) == (tenants > 1)


def test_what_is_set_holds_whatever_else_does() -> None:
    for tenants in (1, 2):
        strict = egress_of(Settings(egress_allow=()), tenants)
        assert strict.policy == CLOSED
        opened = egress_of(Settings(host="0.0.0.0", egress_allow=LOOPBACK, egress_allow_http=True), tenants)
        assert opened.policy == OPEN
        assert "127.0.0.0/8" in opened.words
    public = egress_of(Settings(database_url=ELSEWHERE, egress_allow_http=True), 1)
    assert public.policy == EgressPolicy(allow_http=True)


async def test_a_second_tenant_closes_this_machine_to_all_at_once(
    office: PostOffice, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "evertick.dispatcher")
    dispatcher = Dispatcher(office.url, SEAL, partial(egress_of, Settings()))
    await dispatcher.start()
    first = await office.posted(receiver.url)
    assert (await office.until_ended(first))[0].result == "success"
    await office.add_tenant("other")

    async def is_told() -> bool:
        return "there is more than one tenant" in caplog.text

    await until(is_told)
    later = await office.posted(receiver.url)
    (outcome,) = await office.until_ended(later)
    await dispatcher.stop()
    assert outcome.result == "failed"
    assert outcome.error is not None
    assert "EVERTICK_EGRESS_ALLOW_HTTP" in outcome.error
    assert len(receiver.received) == 1
    assert [record.levelname for record in caplog.records if "webhooks may go" in record.message] == ["INFO", "INFO"]


async def test_a_kept_connection_does_not_outlive_the_policy_it_was_made_under() -> None:
    async with serving(log := Log()) as port, delivering() as delivery:
        url = f"http://inside.test:{port}/"
        assert isinstance(await delivery.deliver(attempt(url), LONG), Succeeded)
        delivery.permit(EgressPolicy(allow_http=True))
        outcome = await delivery.deliver(attempt(url), LONG)
    assert isinstance(outcome, Failed)
    assert "EVERTICK_EGRESS_ALLOW" in outcome.error
    assert len(log.received) == 1


async def test_doctor_says_what_is_open_and_why_not(pool: Pool, office: PostOffice) -> None:
    async def said(settings: Settings) -> str:
        return next(each.what for each in await examine(pool, settings=settings) if each.name == "webhooks")

    assert "may go to this machine (loopback)" in await said(Settings())
    assert "the API listens on 0.0.0.0" in await said(Settings(host="0.0.0.0"))
    await office.add_tenant("other")
    assert "there is more than one tenant" in await said(Settings())


async def test_up_for_everybody_closes_this_machine_and_says_so(data_dir: Path) -> None:
    async with evertick("up", "--data-dir", str(data_dir), "--host", "0.0.0.0") as up:
        assert "because the API listens on 0.0.0.0" in await up.logged("webhooks may go to")
        await up.ready()
        assert await up.stop() == 0
