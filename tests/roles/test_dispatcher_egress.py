"""Loopback and plain http are open by default to one tenant on one machine, and to nobody else."""

import logging
from functools import partial
from ipaddress import ip_network
from pathlib import Path

import pytest

from cli.processes import evertick
from engine import until
from evertick.config.reading import ConfigInvalid, read_settings
from evertick.config.settings import Settings
from evertick.domain.attempt import Failed, Succeeded
from evertick.roles.dispatcher import Dispatcher
from evertick.roles.dispatcher.settings import LOOPBACK, egress_of
from evertick.store.database import Pool
from evertick.targets.egress.guard import EgressPolicy
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
    egress = egress_of(Settings(host=host, database_url=database_url), tenants, runs_api=True)
    is_open = is_local and database_url is None and tenants == 1
    assert egress.policy == (OPEN if is_open else CLOSED)
    assert ("this machine (loopback) and over plain http, as long as" in egress.words) == is_open
    assert (f"the API listens on {host}" in egress.words) == (not is_local)
    assert ("the server is not the embedded one" in egress.words) == (database_url is not None)
    assert ("there is more than one tenant" in egress.words) == (tenants > 1)


def test_what_is_set_holds_whatever_else_does() -> None:
    for tenants in (1, 2):
        strict = egress_of(Settings(egress_allow=()), tenants, runs_api=True)
        assert strict.policy == CLOSED
        settings = Settings(host="0.0.0.0", egress_allow=LOOPBACK, egress_allow_http=True)
        opened = egress_of(settings, tenants, runs_api=False)
        assert opened.policy == OPEN
        assert "127.0.0.0/8" in opened.words
    public = egress_of(Settings(database_url=ELSEWHERE, egress_allow_http=True), 1, runs_api=True)
    assert public.policy == EgressPolicy(allow_http=True)


def test_behind_a_proxy_that_is_trusted_this_machine_is_closed() -> None:
    egress = egress_of(Settings(trusted_proxies=LOOPBACK), 1, runs_api=True)
    assert egress.policy == CLOSED
    assert "because a proxy passes on requests of others to the API" in egress.words


def test_a_process_that_does_not_run_the_api_cannot_know_that_it_listens_on_loopback() -> None:
    egress = egress_of(Settings(), 1, runs_api=False)
    assert egress.policy == CLOSED
    assert "because this process does not run the API" in egress.words


@pytest.mark.parametrize("word", ["none", " None "])
def test_this_machine_can_be_closed_by_a_word(word: str, tmp_path: Path) -> None:
    by_variable = read_settings({"EVERTICK_EGRESS_ALLOW": word}, tmp_path)
    (tmp_path / "evertick.toml").write_text(f'egress_allow = "{word}"', encoding="utf-8")
    by_file = read_settings({}, tmp_path)
    for settings in (by_variable, by_file):
        assert egress_of(settings, 1, runs_api=True).policy == CLOSED
    assert read_settings({"EVERTICK_EGRESS_ALLOW": "10.2.0.0/16"}, tmp_path).egress_allow == (
        ip_network("10.2.0.0/16"),
    )
    for empty in (" ", ","):
        with pytest.raises(ConfigInvalid, match="or none"):
            read_settings({"EVERTICK_EGRESS_ALLOW": empty}, tmp_path)


async def test_a_second_tenant_closes_this_machine_to_all_at_once(
    office: PostOffice, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "evertick.dispatcher")
    dispatcher = Dispatcher(office.url, SEAL, partial(egress_of, Settings(), runs_api=True))
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


async def test_the_first_webhook_of_a_second_tenant_does_not_reach_this_machine(
    office: PostOffice, receiver: Receiver
) -> None:
    dispatcher = Dispatcher(office.url, SEAL, partial(egress_of, Settings(), runs_api=True))
    await dispatcher.open()
    await office.posted(receiver.url)
    await dispatcher.work_off()
    later = await office.posted(receiver.url, tenant_id=await office.add_tenant("other"))
    await dispatcher.work_off()
    await dispatcher.close()
    (outcome,) = await office.until_ended(later)
    assert outcome.result == "failed"
    assert outcome.error is not None
    assert "EVERTICK_EGRESS_ALLOW_HTTP" in outcome.error
    assert len(receiver.received) == 1


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


async def test_a_dispatcher_without_the_api_leaves_this_machine_closed_and_says_so(data_dir: Path) -> None:
    async with evertick("up", "--data-dir", str(data_dir), "--roles", "scheduler,dispatcher,janitor") as up:
        assert "because this process does not run the API" in await up.logged("webhooks may go to")
        assert await up.stop() == 0
