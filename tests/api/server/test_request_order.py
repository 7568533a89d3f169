"""Whose request begins first, when one tenant sends hundreds at once."""

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable
from urllib.parse import urlsplit

import pytest

from api.callers import Caller, Callers
from evertick.api.server import ApiServer, connection_limits
from evertick.api.server.connection_limits import RequestQueue

CROWD = 400


async def test_a_request_does_not_wait_for_hundreds_that_another_tenant_sent_before(
    server: ApiServer, callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that a turn or two by which the kernel hands it over late does not matter.
    monkeypatch.setattr(connection_limits, "STARTS_PER_TURN", 1)
    crowd, other = await callers.make("viewer"), await callers.make("viewer", await callers.tenant())
    place = urlsplit(server.address)
    connections = [await asyncio.open_connection(place.hostname, place.port) for _ in range(CROWD + 1)]
    begun: list[Hashable] = []
    start = RequestQueue.start

    def noting(queue: RequestQueue, begin: Callable[[], None], client: Callable[[], Hashable]) -> None:
        def note_and_begin() -> None:
            begun.append(client())
            begin()

        start(queue, note_and_begin, client)

    # Looked at here: in which order the kernel hands the answers to so many sockets says nothing about the server.
    monkeypatch.setattr(RequestQueue, "start", noting)

    async def ask(number: int, caller: Caller) -> None:
        reader, writer = connections[number]
        writer.write(f"GET /api/v1/cluster HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {caller.key}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        await reader.readexactly(int(head.partition(b"content-length: ")[2].split()[0]))

    try:
        # Known keys, as of clients that come often.
        await asyncio.gather(ask(0, crowd), ask(CROWD, other))
        begun.clear()
        await asyncio.gather(*(ask(number, crowd) for number in range(1, CROWD)), ask(CROWD, other))
    finally:
        for _, writer in connections:
            writer.transport.abort()
    tenants = Counter(begun)
    assert sorted(tenants.values()) == [1, CROWD - 1]
    assert begun.index(min(tenants, key=tenants.__getitem__)) < CROWD / 2
