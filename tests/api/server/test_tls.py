"""The API over TLS: with the certificate that its files have now, within the limits of plain connections."""

import asyncio
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import httpx
import pytest
import uvloop
from cryptography.x509 import load_der_x509_certificate

from cli.processes import evertick
from engine import PATIENCE_SECONDS, until
from evertick.api.server import ApiServer, connections, tls
from evertick.client import AsyncClient
from evertick.config.settings import Settings
from evertick.metrics.catalog import HTTP_REFUSED

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="NOT TESTED: no openssl to make certificates")
LIVEZ = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


class Files:
    """A certificate and its key, as a server is given them, and as something renews them."""

    def __init__(self, folder: Path) -> None:
        self.cert = folder / "tls.crt"
        self.key = folder / "tls.key"
        self._folder = folder

    def issue(self, name: str, *options: str) -> tuple[Path, Path]:
        """A new certificate for this machine, by this name. It is not in use yet."""
        cert, key = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
        kind = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "2"]
        command = ["openssl", *kind, *subject, *(options or ["-nodes"]), "-keyout", key, "-out", cert]
        subprocess.run(command, check=True, capture_output=True)
        return cert, key

    def use(self, name: str) -> "Files":
        """Put a new certificate into place."""
        cert, key = self.issue(name)
        cert.replace(self.cert)
        key.replace(self.key)
        return self

    @property
    def settings(self) -> Settings:
        return Settings(port=0, tls_cert=self.cert, tls_key=self.key)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path).use("first")


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "REFRESH_SECONDS", 0.05)
    monkeypatch.setattr(connections, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(connections, "LINGER_SECONDS", 0.1)


@asynccontextmanager
async def serving(database_url: str, settings: Settings) -> AsyncIterator[ApiServer]:
    server = ApiServer(database_url, settings, connections=2)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def trusting(cert: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=cert)


@asynccontextmanager
async def connected(
    server: ApiServer, context: ssl.SSLContext | None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    place = urlsplit(server.address)
    reader, writer = await asyncio.open_connection(place.hostname, place.port, ssl=context)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


async def name_in_certificate(server: ApiServer) -> str:
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    async with connected(server, anybody) as (_, writer):
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return load_der_x509_certificate(shown).subject.rfc4514_string().removeprefix("CN=")


async def answer_to(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes = LIVEZ) -> bytes:
    writer.write(request)
    return await reader.readuntil(b"\r\n")


async def test_up_serves_https_to_who_trusts_the_certificate(
    database_url: str, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"EVERTICK_TLS_CERT": str(files.cert), "EVERTICK_TLS_KEY": str(files.key)}
    async with evertick("up", "--roles", "api", "--database-url", database_url, **environment) as up:
        said = re.fullmatch(r"Evertick is ready at (https://127\.0\.0\.1:\d+)\n", await up.ready())
        shown = re.fullmatch(r"API key: (evt_\w+)\n", await up.line())
        assert said
        assert shown
        monkeypatch.setenv("SSL_CERT_FILE", str(files.cert))
        async with AsyncClient(said[1], shown[1]) as client:
            job = await client.jobs.create(schedule="manual", target={"type": "worker", "handler": "h"})
            assert [each.job_id async for each in client.jobs.list()] == [job.job_id]
        monkeypatch.delenv("SSL_CERT_FILE")
        async with httpx.AsyncClient(trust_env=False, timeout=120) as stranger:
            with pytest.raises(httpx.ConnectError, match="self-signed"):
                await stranger.get(f"{said[1]}/livez")
        assert await up.stop() == 0


async def test_plain_http_is_refused(database_url: str, files: Files) -> None:
    async with (
        serving(database_url, files.settings) as server,
        httpx.AsyncClient(trust_env=False, timeout=120) as client,
    ):
        with pytest.raises(httpx.TransportError):
            await client.get(server.address.replace("https:", "http:") + "/livez")


async def test_a_renewed_certificate_is_used_for_new_connections_and_old_ones_go_on(
    database_url: str, files: Files
) -> None:
    async with (
        serving(database_url, files.settings) as server,
        connected(server, trusting(files.cert)) as (reader, writer),
    ):
        assert await name_in_certificate(server) == "first"
        files.use("second")

        async def is_new() -> bool:
            return await name_in_certificate(server) == "second"

        await until(is_new)
        async with httpx.AsyncClient(verify=trusting(files.cert), trust_env=False, timeout=120) as client:
            assert (await client.get(f"{server.address}/livez")).status_code == 200
        assert await answer_to(reader, writer) == b"HTTP/1.1 200 OK\r\n"


def test_a_half_written_pair_of_files_changes_nothing_until_it_is_whole(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    certificate = tls.Certificate(files.cert, files.key)
    first = certificate.context
    cert, key = files.issue("second")
    cert.replace(files.cert)
    for _ in range(2):
        certificate.refresh()
        assert certificate.context is first
    assert caplog.text.count("keeps the certificate that it has") == 1
    key.replace(files.key)
    certificate.refresh()
    assert certificate.context is not first


@pytest.mark.parametrize(
    ("break_files", "words"),
    [
        (lambda files: files.key.unlink(), "No such file"),
        (lambda files: files.key.write_text("no key"), "cannot be used"),
        (lambda files: files.issue("other")[1].replace(files.key), "KEY_VALUES_MISMATCH"),
        (lambda files: files.issue("locked", "-passout", "pass:secret")[1].replace(files.key), "the key is encrypted"),
    ],
    ids=["missing", "no key", "other key", "encrypted"],
)
async def test_files_that_cannot_be_used_end_the_start_with_a_line(
    database_url: str, files: Files, break_files: object, words: str
) -> None:
    assert callable(break_files)
    break_files(files)
    server = ApiServer(database_url, files.settings)
    with pytest.raises(tls.CannotUseCertificate, match=words):
        await server.start()


async def test_who_does_not_begin_a_handshake_makes_room_for_who_does(
    database_url: str, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 10 * PATIENCE_SECONDS)
    settings = Settings(port=0, tls_cert=files.cert, tls_key=files.key, max_connections=2)
    async with (
        serving(database_url, settings) as server,
        connected(server, None) as (one, _),
        connected(server, None) as (other, _),
        AsyncExitStack() as clients,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        for _ in range(2):
            client = await clients.enter_async_context(connected(server, trusting(files.cert)))
            assert await answer_to(*client) == b"HTTP/1.1 200 OK\r\n"
        assert await one.read() == b""
        assert await other.read() == b""


async def test_a_handshake_has_the_time_of_a_head(
    database_url: str, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.2)
    before = HTTP_REFUSED.value("handshake")
    async with (
        serving(database_url, files.settings) as server,
        connected(server, None) as (reader, _),
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        assert await reader.read() == b""
    assert HTTP_REFUSED.value("handshake") == before + 1


async def test_a_refusal_arrives_and_ends_the_connection(
    database_url: str, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        serving(database_url, files.settings) as server,
        connected(server, trusting(files.cert)) as (reader, writer),
    ):
        writer.write(b"GET /livez HTTP/1.1\r\nX-Long: " + b"y" * connections.HEAD_BYTES)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await reader.read()).startswith(b"HTTP/1.1 431")
    assert not [record for record in caplog.records if record.exc_info]


def test_a_client_that_never_says_goodbye_is_disconnected_also_by_a_stop(database_url: str, files: Files) -> None:
    """On the event loop that servers use."""

    def ask(place: SplitResult, request: bytes) -> socket.socket:
        """A connection of a client that has read the response, and then does nothing."""
        raw = socket.create_connection((place.hostname or "", place.port or 0), PATIENCE_SECONDS)
        client = trusting(files.cert).wrap_socket(raw, server_hostname="127.0.0.1")
        client.sendall(request)
        assert client.recv(15).startswith(b"HTTP/1.1 200")
        return socket.socket(fileno=client.detach())

    def until_closed(client: socket.socket) -> None:
        client.settimeout(PATIENCE_SECONDS)
        with client, suppress(ConnectionError):
            while client.recv(65_536):
                pass

    async def serve_and_stop() -> None:
        async with serving(database_url, files.settings) as server:
            place = urlsplit(server.address)
            closing = LIVEZ.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
            await asyncio.to_thread(until_closed, await asyncio.to_thread(ask, place, closing))
            idle = await asyncio.to_thread(ask, place, LIVEZ)
            silent = socket.create_connection((place.hostname or "", place.port or 0))
            await server.stop()
            for client in (idle, silent):
                await asyncio.to_thread(until_closed, client)

    uvloop.run(serve_and_stop())


def test_who_does_not_read_an_answer_is_disconnected(
    database_url: str, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the event loop that servers use: it keeps bytes of a secured connection in other places."""
    monkeypatch.setattr(connections, "STALL_SECONDS", 0.5)

    async def serve() -> None:
        async with (
            serving(database_url, files.settings) as server,
            httpx.AsyncClient(verify=trusting(files.cert), trust_env=False, timeout=120) as other,
            connected(server, trusting(files.cert)) as (_, writer),
        ):
            writer.transport.pause_reading()  # type: ignore[attr-defined]

            async def is_disconnected() -> bool:
                writer.write(b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n")
                metrics = (await other.get(f"{server.address}/metrics")).text
                return 'evertick_http_refused_connections_total{reason="slow-reader"} 1.0' in metrics

            await until(is_disconnected)

    uvloop.run(serve())
