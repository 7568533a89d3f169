"""Whose request begins first, when one tenant sends hundreds at once."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable
from ipaddress import ip_network
from urllib.parse import urlsplit

import pytest

from api.callers import Caller, Callers
from evertick.api.server import ApiServer, connection_limits
from evertick.api.server.connection_limits import RequestQueue
from evertick.config.settings import Settings
from evertick.config.values import Network

CROWD = 400


class NotingQueue(RequestQueue):
    """Notes whose requests begin. The order of answers says little: the kernel hands them to so many sockets."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[Hashable] = []

    def start(self, begin: Callable[[], None], client: Callable[[], Hashable]) -> None:
        def note_and_begin() -> None:
            self.begun.append(client())
            begin()

        super().start(note_and_begin, client)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> NotingQueue:
    # So that a turn or two by which the kernel hands it over late does not matter.
    monkeypatch.setattr(connection_limits, "STARTS_PER_TURN", 1)
    return NotingQueue()


@pytest.fixture
async def server(database_url: str, requests: NotingQueue) -> AsyncIterator[ApiServer]:
    server = ApiServer(database_url, Settings(port=0), requests=requests)
    await server.start()
    yield server
    await server.stop()


async def test_a_request_does_not_wait_for_hundreds_that_another_tenant_sent_before(
    server: ApiServer, callers: Callers, requests: NotingQueue
) -> None:
    crowd, other = await callers.make("viewer"), await callers.make("viewer", await callers.tenant())
    place = urlsplit(server.address)
    connections = [await asyncio.open_connection(place.hostname, place.port) for _ in range(CROWD + 1)]

    async def ask(number: int, caller: Caller) -> None:
        reader, writer = connections[number]
        writer.write(f"GET /api/v1/cluster HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {caller.key}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        await reader.readexactly(int(head.partition(b"content-length: ")[2].split()[0]))

    try:
        # Known keys, as of clients that come often.
        await asyncio.gather(ask(0, crowd), ask(CROWD, other))
        requests.begun.clear()
        await asyncio.gather(*(ask(number, crowd) for number in range(1, CROWD)), ask(CROWD, other))
    finally:
        for _, writer in connections:
            writer.transport.abort()
    tenants = Counter(requests.begun)
    assert sorted(tenants.values()) == [1, CROWD - 1]
    assert requests.begun.index(min(tenants, key=tenants.__getitem__)) < CROWD / 2


@pytest.mark.parametrize(
    ("proxies", "origin"),
    [((), "local"), ((ip_network("127.0.0.0/8"),), "203.0.113.9")],
    ids=["not trusted", "trusted"],
)
async def test_only_a_trusted_proxy_says_whose_request_it_passes_on(
    database_url: str, requests: NotingQueue, proxies: tuple[Network, ...], origin: str
) -> None:
    server = ApiServer(database_url, Settings(port=0, trusted_proxies=proxies), requests=requests)
    await server.start()
    try:
        place = urlsplit(server.address)
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        writer.write(b"GET /livez HTTP/1.1\r\nX-Forwarded-For: 198.51.100.1, 203.0.113.9\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.transport.abort()
    finally:
        await server.stop()
    assert requests.begun == [origin]
