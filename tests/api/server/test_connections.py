"""What clients may send before a request is accepted, how long they may take, and how many may be connected."""

import asyncio
import json
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from ipaddress import ip_network
from typing import Any
from urllib.parse import urlsplit

import pytest

from api.callers import JOB, Caller, Callers, is_problem
from engine import PATIENCE_SECONDS, until
from evertick.api.bodies.memory_limits import UNREAD_BYTES_PER_TENANT
from evertick.api.server import ApiServer, connection_limits, connections
from evertick.config.settings import Settings
from evertick.metrics.catalog import HTTP_REFUSED

MAX_READ = 1_048_576
LIVEZ = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
READYZ = b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = b"POST /api/v1/jobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


class Client:
    """A client that writes bytes, not requests."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        with suppress(ConnectionError):
            await self.writer.drain()

    async def answer(self) -> tuple[int, dict[str, Any]]:
        async with asyncio.timeout(PATIENCE_SECONDS):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            assert length is not None
            body = await self.reader.readexactly(int(length[1]))
        return int(head[9:12]), json.loads(body)

    async def until_closed(self) -> bytes:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.reader.read()


@asynccontextmanager
async def connected(server: ApiServer) -> AsyncIterator[Client]:
    place = urlsplit(server.address)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def refused(server: ApiServer, *parts: bytes) -> tuple[int, str]:
    """The status and the kind of the problem that is answered, once the connection is closed after it."""
    async with connected(server) as client:
        for part in parts:
            await client.send(part)
        status, problem = await client.answer()
        assert problem["status"] == status
        assert problem["request_id"]
        assert await client.until_closed() == b""
        return status, problem["type"].rpartition(":")[2]


def _with_key(head: bytes, caller: Caller) -> bytes:
    return head[:-2] + f"Authorization: Bearer {caller.key}\r\n\r\n".encode()


@pytest.fixture(autouse=True)
def sweep_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second of a deadline is a sweep, whatever time that takes."""
    monkeypatch.setattr(connections, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(connections, "LINGER_SECONDS", 0.1)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEAD_SECONDS", "STALL_SECONDS", "GRACE_SECONDS"):
        monkeypatch.setattr(connections, name, 0.5)


# Heads


@pytest.mark.parametrize(
    "parts",
    [
        (b"GET /livez HTTP/1.1\r\nX-Long: ", b"y" * connections.HEAD_BYTES),
        (b"GET /livez HTTP/1.1\r\n", b"X-Header: y\r\n" * 102),
        (b"\r\n" * connections.HEAD_BYTES,),
        (LIVEZ[:-2], b"".join(b"X-%d: %b\r\n" % (n, b"y" * 1000) for n in range(50)) + b"\r\n"),
    ],
    ids=["one header", "many headers", "empty lines", "all headers"],
)
async def test_a_head_that_is_too_large_is_refused(server: ApiServer, parts: tuple[bytes, ...]) -> None:
    assert await refused(server, *parts) == (431, "head-too-large")


@pytest.mark.parametrize(
    "parts",
    [
        (b"0\r\nX-Trailer: ", b"y" * 200_000),
        (b"0\r\n" + b"X: y\r\n" * 102,),
        (b"1;", b"e" * 200_000),
    ],
    ids=["one trailer", "many trailers", "chunk extension"],
)
async def test_what_is_around_a_body_is_no_place_for_a_flood(
    server: ApiServer, admin: Caller, parts: tuple[bytes, ...]
) -> None:
    assert await refused(server, _with_key(CHUNKED, admin), *parts) == (431, "head-too-large")


async def test_a_head_of_exactly_the_limit_is_read_and_one_of_a_byte_more_is_not(server: ApiServer) -> None:
    room = connections.HEAD_BYTES - len(LIVEZ) - len(b"X: \r\n")
    for size, status in ((room, 200), (room + 1, 431)):
        async with connected(server) as client:
            await client.send(LIVEZ[:-2] + b"X: " + b"y" * size + b"\r\n\r\n")
            assert (await client.answer())[0] == status


async def test_a_url_that_is_too_long_is_refused(server: ApiServer) -> None:
    assert await refused(server, b"GET /", b"a" * 1_000_000) == (414, "url-too-long")


async def test_a_url_of_the_limit_is_read(server: ApiServer) -> None:
    async with connected(server) as client:
        await client.send(b"GET /" + b"a" * (connections.URL_BYTES - 1) + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await client.answer())[0] == 404


@pytest.mark.parametrize(
    "request_",
    [
        b"POST / HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: folded\r\n line\r\n\r\n",
        b"CONNECT db.internal:5432 HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET http:///x HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
    ],
)
async def test_what_is_no_request_is_told_so(server: ApiServer, request_: bytes) -> None:
    assert await refused(server, request_) == (400, "malformed")


async def test_a_chunk_that_cannot_be_read_is_told_so_though_its_request_is_under_way(
    server: ApiServer, admin: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    assert await refused(server, _with_key(CHUNKED, admin) + b"5\r\n{    \r\nnot hexadecimal\r\n") == (400, "malformed")
    await admin.get("/jobs")
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_length_beyond_every_limit_is_too_large(server: ApiServer, admin: Caller) -> None:
    head = f"POST /api/v1/jobs HTTP/1.1\r\nAuthorization: Bearer {admin.key}\r\nContent-Length: {2**63}\r\n\r\n"
    async with connected(server) as client:
        await client.send(head.encode())
        assert (await client.answer())[0] == 413


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
async def test_a_wish_for_another_protocol_is_ignored_and_the_body_read(
    server: ApiServer, admin: Caller, protocol: str
) -> None:
    body = json.dumps({**JOB, "name": "upgraded"}).encode()
    head = (
        f"POST /api/v1/jobs HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: {protocol}\r\n"
        f"Authorization: Bearer {admin.key}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    async with connected(server) as client:
        await client.send(head.encode() + body + LIVEZ)
        status, created = await client.answer()
        assert (status, created["name"]) == (201, "upgraded")
        assert (await client.answer())[0] == 200


async def test_a_client_that_asks_first_is_told_to_go_on(server: ApiServer, admin: Caller) -> None:
    body = json.dumps(JOB).encode()
    head = (
        f"POST /api/v1/jobs HTTP/1.1\r\nAuthorization: Bearer {admin.key}\r\nExpect: 100-continue\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    async with connected(server) as client:
        await client.send(head.encode())
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(body)
        assert (await client.answer())[0] == 201


async def test_a_trailer_is_not_taken_for_a_header(server: ApiServer, admin: Caller) -> None:
    trailer = f"0\r\nAuthorization: Bearer {admin.key}\r\n\r\n"
    async with connected(server) as client:
        await client.send(CHUNKED + trailer.encode())
        assert (await client.answer())[0] == 401


# Many requests at once


async def test_a_few_requests_at_once_are_answered_in_order(server: ApiServer) -> None:
    async with connected(server) as client:
        await client.send(LIVEZ * connections.MAX_PIPELINED)
        assert [(await client.answer())[0] for _ in range(connections.MAX_PIPELINED)] == [200] * 8
        await client.send(LIVEZ)
        assert (await client.answer())[0] == 200


async def test_a_flood_of_requests_at_once_ends_with_the_connection(server: ApiServer) -> None:
    async with connected(server) as client:
        await client.send(LIVEZ * 10_000)
        answers = await client.until_closed()
    assert answers.count(b"HTTP/1.1 200") == connections.MAX_PIPELINED + 1
    assert answers.count(b"connection: close") == 1
    assert answers.endswith(b"}")


async def test_what_follows_a_request_and_is_none_does_not_cut_its_answer_off(server: ApiServer) -> None:
    async with connected(server) as client:
        await client.send(LIVEZ + b"nonsense\r\n\r\n")
        answers = await client.until_closed()
    assert answers.startswith(b"HTTP/1.1 200")
    assert answers.count(b"HTTP/1.1") == 1
    assert b"connection: close" in answers


# Deadlines


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("sent", [b"GET /livez HTTP/1.1\r\nX-Slow: ", LIVEZ + b"GET /live", LIVEZ + b"\r\n"])
async def test_a_head_that_does_not_end_is_refused_in_time(server: ApiServer, sent: bytes) -> None:
    async with connected(server) as client:
        for byte in sent:
            await client.send(bytes([byte]))
        if sent.startswith(LIVEZ):
            assert (await client.answer())[0] == 200
            await client.send(b"\r\n")
        assert (await client.answer())[0] == 408
        assert await client.until_closed() == b""


@pytest.mark.usefixtures("short")
async def test_empty_lines_after_an_answer_do_not_keep_a_connection(server: ApiServer) -> None:
    async with connected(server) as client:
        await client.send(b"GET /api/v1/jobs HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await client.answer())[0] == 401
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not client.reader.at_eof():
                await client.send(b"\r\n")
                await asyncio.wait([asyncio.ensure_future(client.reader.read(1000))], timeout=0.01)


@pytest.mark.usefixtures("short")
async def test_who_connects_and_says_nothing_is_disconnected(server: ApiServer) -> None:
    async with connected(server) as client:
        assert await client.until_closed() == b""


def _upload(admin: Caller, size: int) -> bytes:
    head = f"POST /api/v1/jobs HTTP/1.1\r\nAuthorization: Bearer {admin.key}\r\nContent-Length: {size}\r\n\r\n"
    return head.encode()


@pytest.mark.usefixtures("short")
async def test_a_body_that_does_not_go_on_is_refused_without_a_trace_in_the_log(
    server: ApiServer, admin: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    before = HTTP_REFUSED.value("too-slow")
    assert await refused(server, _upload(admin, 100), b"{") == (408, "too-slow")
    assert HTTP_REFUSED.value("too-slow") == before + 1
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_body_that_drips_is_refused(server: ApiServer, admin: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "GRACE_SECONDS", 0.5)
    async with connected(server) as client:
        await client.send(_upload(admin, 100_000))
        answer = asyncio.create_task(client.answer())
        while not answer.done():
            await client.send(b" ")
            await asyncio.wait([answer], timeout=0.01)
        assert (await answer)[0] == 408


@pytest.mark.usefixtures("short")
async def test_a_long_poll_is_not_taken_for_a_slow_client(server: ApiServer, admin: Caller) -> None:
    worker = Caller(server.address, admin.key)
    attempts = await worker.lease(wait_seconds=2)
    assert attempts == []
    await worker.aclose()


async def test_who_does_not_read_an_answer_is_disconnected(
    server: ApiServer, admin: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(admin.base_url.copy_with(path="/api/v1/openapi.json"))
    await admin.get(path)
    before = HTTP_REFUSED.value("slow-reader")
    monkeypatch.setattr(connections, "STALL_SECONDS", 0.5)
    async with connected(server) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]

        async def is_closed() -> bool:
            await client.send(b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n")
            return HTTP_REFUSED.value("slow-reader") == before + 1

        await until(is_closed)


# Clients that hang up


@pytest.mark.parametrize("sent", [b"{", b"[" * 500_000])
async def test_a_client_that_hangs_up_in_its_body_leaves_no_trace_in_the_log(
    server: ApiServer, admin: Caller, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    with caplog.at_level(logging.DEBUG, "evertick.api"):
        async with connected(server) as client:
            await client.send(_upload(admin, 1_000_000) + sent)

        async def is_noticed() -> bool:
            return "hung up" in caplog.text

        await until(is_noticed)
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG and record.name != "httpx"]


# How many


@pytest.fixture
async def small(database_url: str) -> AsyncIterator[ApiServer]:
    """A server for four clients, at most two of one address."""
    server = ApiServer(database_url, Settings(port=0, max_connections=4, max_connections_per_address=2))
    await server.start()
    yield server
    await server.stop()


@asynccontextmanager
async def four_connected(server: ApiServer) -> AsyncIterator[list[Client]]:
    """As many as the small server allows; all of them are counted."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(server)) for _ in range(4)]
        for client in clients:
            await client.send(LIVEZ)
            assert (await client.answer())[0] == 200
        yield clients


async def test_connections_that_do_nothing_shut_nobody_out(small: ApiServer) -> None:
    async with four_connected(small) as idle, connected(small) as client:
        await client.send(LIVEZ)
        assert (await client.answer())[0] == 200
        assert await idle[0].until_closed() == b""  # the longest waiting one
        await idle[1].send(LIVEZ)
        assert (await idle[1].answer())[0] == 200


async def test_half_a_head_is_no_request_under_way(small: ApiServer) -> None:
    async with four_connected(small) as slow, connected(small) as client:
        for each in slow:
            await each.send(LIVEZ[:20])
        await client.send(LIVEZ)
        assert (await client.answer())[0] == 200


async def test_who_was_answered_early_and_sends_on_makes_room(small: ApiServer) -> None:
    async with four_connected(small) as early:
        for each in early:
            await each.send(b"POST /api/v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nx")
            assert (await each.answer())[0] == 401
        await until(lambda: _answers(small, 200))


async def test_a_server_that_is_full_of_requests_says_so_and_that_it_is_alive(small: ApiServer, admin: Caller) -> None:
    body = b'{"worker_id": "w", "wait_seconds": 20}'
    head = _with_key(b"POST /api/v1/queues/billing/lease HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body), admin)
    async with four_connected(small) as polls:
        for each in polls:
            await each.send(head + body)
        await until(lambda: _answers(small, 503))
        assert await _answers(small, 200, LIVEZ)
        polls[0].writer.close()
        await until(lambda: _answers(small, 200))


async def _answers(server: ApiServer, status: int, request: bytes = READYZ) -> bool:
    """Whether a newcomer is answered so."""
    async with connected(server) as client:
        await client.send(request)
        return (await client.answer())[0] == status


class Seat:
    """A connection as the limits know it."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True

    def sweep(self) -> None:
        pass


def test_one_address_has_its_own_limit_and_gives_way_to_itself() -> None:
    refused: list[str] = []
    limits = connection_limits.ConnectionLimits(10, 2, refused.append)
    mine, other = [Seat("10.0.0.1") for _ in range(2)], Seat("10.0.0.2")
    assert all(limits.admit(each) for each in (other, *mine))
    late = Seat("10.0.0.1")
    assert limits.admit(late)
    assert [each.is_aborted for each in (other, *mine, late)] == [False, True, False, False]
    limits.work(mine[1])
    limits.work(late)
    assert not limits.admit(Seat("10.0.0.1"))
    assert limits.admit(Seat("10.0.0.2"))
    assert refused == ["evicted", "full"]


def test_this_machine_has_no_limit_of_its_own() -> None:
    limits = connection_limits.ConnectionLimits(3, 1, lambda _: None)
    seats = [Seat(connection_limits.LOCAL) for _ in range(3)]
    assert all(limits.admit(each) for each in seats)
    assert not any(each.is_aborted for each in seats)


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("127.0.0.1", "local"),
        ("127.9.9.9", "local"),
        ("::ffff:127.0.0.1", "local"),
        ("::1", "local"),
        ("fe80::1%eth0", "fe80::"),
        (None, "local"),
    ],
)
def test_an_ipv6_network_counts_as_one_address(host: str | None, origin: str) -> None:
    assert connection_limits.origin_of(host) == origin


PROXIES = (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))


@pytest.mark.parametrize(
    ("header", "origin"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("198.51.100.1, 203.0.113.7", "203.0.113.7"),
        ("203.0.113.7,10.1.2.3 , fd00::1", "203.0.113.7"),
        ("203.0.113.7, ::ffff:10.1.2.3", "203.0.113.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("10.1.2.3", None),
        ("203.0.113.7, unknown", None),
        ("203.0.113.7, ", None),
        ("", None),
        ("203.0.113.7" + ", 10.1.2.3" * connection_limits.MAX_PROXIES, None),
    ],
)
def test_the_last_address_that_is_no_trusted_proxy_is_the_client(header: str, origin: str | None) -> None:
    assert connection_limits.forwarded_origin(header, PROXIES) == origin


def test_a_trusted_proxy_has_no_limit_of_its_own() -> None:
    limits = connection_limits.ConnectionLimits(3, 1, lambda _: None, PROXIES)
    assert limits.origin_of("10.1.2.3") == connection_limits.LOCAL
    assert limits.origin_of("203.0.113.7") == "203.0.113.7"


async def test_requests_that_wait_for_their_turn_count_what_was_answered_meanwhile(
    server: ApiServer, admin: Caller
) -> None:
    """All came when nothing was to be read yet; those under way by then, on half of the connections, may add theirs."""
    made = await admin.post("/jobs:batch", json=[{**JOB, "payload": "x" * 65_000}] * 200)
    assert made.status_code == 200
    listing = _with_key(b"GET /api/v1/jobs?limit=200 HTTP/1.1\r\nHost: x\r\n\r\n", admin)
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(server)) for _ in range(16)]
        for client in clients:
            await client.send(listing)
        answers = Counter([await client.reader.readexactly(12) for client in clients])
    answered = answers.pop(b"HTTP/1.1 200")
    assert answers.keys() == {b"HTTP/1.1 429"}
    assert answered * 200 * 65_000 <= UNREAD_BYTES_PER_TENANT + 4 * 200 * 65_100


async def test_a_tenant_that_does_not_read_its_answers_gets_no_more_of_them(
    server: ApiServer, admin: Caller, callers: Callers
) -> None:
    """Others do, and so does it when it has read them."""
    # More than the kernel's buffers take.
    made = await admin.post("/jobs:batch", json=[{**JOB, "payload": "x" * 65_000}] * 200)
    assert made.status_code == 200
    listing = _with_key(b"GET /api/v1/jobs?limit=200 HTTP/1.1\r\nHost: x\r\n\r\n", admin)

    async def is_refused() -> bool:
        answer = await admin.get("/jobs", params={"limit": 1})
        assert answer.status_code in {200, 429}
        return answer.status_code == 429

    async with AsyncExitStack() as stack:
        clients = []

        async def ask_and_look() -> bool:
            clients.append(await stack.enter_async_context(connected(server)))
            await clients[-1].send(listing)
            await clients[-1].reader.readexactly(12)
            return await is_refused()

        await until(ask_and_look)
        assert len(clients) * 200 * 65_000 < 3 * UNREAD_BYTES_PER_TENANT
        refused_answer = await admin.get("/jobs")
        assert is_problem(refused_answer, 429, "over-quota")["quota"] == "unread_answers"
        other = await callers.make("viewer", await callers.tenant())
        assert (await other.get("/jobs")).status_code == 200

        async def reads(client: Client) -> None:
            while await client.reader.read(MAX_READ):
                pass

        reading = [asyncio.create_task(reads(client)) for client in clients]

        async def is_served() -> bool:
            return not await is_refused()

        await until(is_served)
        for task in reading:
            task.cancel()
