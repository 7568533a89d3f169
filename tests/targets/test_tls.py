"""Deliveries over TLS: to the name in the URL, certified by somebody we trust, or not at all."""

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from evertick.domain.attempt import Failed, Succeeded
from evertick.domain.states import Outcome
from targets.receivers import LONG, OK, Log, attempt, delivering, serving

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="NOT TESTED: no openssl to make certificates")


class Certified:
    """A self-signed certificate for `name`, as a server uses it and as a client trusts it."""

    def __init__(self, folder: Path, name: str) -> None:
        key, certificate = folder / f"{name}.key", folder / f"{name}.pem"
        options = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
        subject = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"]
        subprocess.run(
            ["openssl", *options.split(), *subject, "-keyout", key, "-out", certificate],
            check=True,
            capture_output=True,
        )
        self.asked_for: list[str | None] = []
        self.server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.server.load_cert_chain(certificate, key)
        self.server.sni_callback = lambda _, name, __: self.asked_for.append(name)
        self.client = ssl.create_default_context(cafile=certificate)


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Certified:
    return Certified(tmp_path_factory.mktemp("tls"), "receiver.test")


async def test_a_trusted_receiver_is_reached_under_its_name(certified: Certified) -> None:
    async with serving(receiver := Log(), tls=certified.server) as port, delivering(tls=certified.client) as delivery:
        for _ in range(2):
            outcome = await delivery.deliver(attempt(f"https://receiver.test:{port}/"), LONG)
            assert isinstance(outcome, Succeeded)
    assert certified.asked_for[-1] == "receiver.test"
    assert receiver.received[0].headers["host"] == f"receiver.test:{port}"
    assert receiver.connections == 1


async def test_a_self_signed_certificate_is_refused(certified: Certified) -> None:
    async with serving(receiver := Log(), tls=certified.server) as port, delivering() as delivery:
        outcome = await delivery.deliver(attempt(f"https://receiver.test:{port}/"), LONG)
    assert isinstance(outcome, Failed)
    assert outcome.error.startswith("TLS failed: self")
    assert outcome.retryable
    assert receiver.received == []


async def test_a_certificate_for_another_name_is_refused(certified: Certified) -> None:
    async with serving(receiver := Log(), tls=certified.server) as port, delivering(tls=certified.client) as delivery:
        outcome = await delivery.deliver(attempt(f"https://other.test:{port}/"), LONG)
    assert isinstance(outcome, Failed)
    assert "other.test" in outcome.error
    assert receiver.received == []


async def test_a_receiver_without_tls_is_a_failure() -> None:
    async def answer_at_once(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        await writer.drain()

    async with serving(answer_at_once) as port, delivering() as delivery:
        outcome = await delivery.deliver(attempt(f"https://receiver.test:{port}/"), LONG)
    assert outcome == Failed("TLS failed: the handshake broke off")


async def test_a_handshake_that_hangs_is_given_up_at_the_deadline() -> None:
    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    async with serving(hang) as port, delivering() as delivery, asyncio.timeout(LONG):
        outcome = await delivery.deliver(attempt(f"https://receiver.test:{port}/"), 0.3)
    assert isinstance(outcome, Failed)
    assert outcome.result is Outcome.TIMED_OUT
