"""Slow name servers delay only those who ask for their names."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from evertick.targets.egress.resolution import SystemResolver


class NameServer:
    """Stands in for the system's: names that begin with `slow` are answered once it is released."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.released = threading.Event()

    def getaddrinfo(self, name: str, *_: object, **__: object) -> list[Any]:
        self.asked.append(name)
        if name.startswith("slow"):
            self.released.wait(30)
        if name.startswith("unknown"):
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        if name.startswith("odd"):
            name.encode("ascii")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.7", 0))]


@pytest.fixture
def name_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    server = NameServer()
    monkeypatch.setattr(socket, "getaddrinfo", server.getaddrinfo)
    yield server
    server.released.set()


async def test_addresses_come_as_texts(name_server: NameServer) -> None:
    assert await SystemResolver()("fast.test") == ["192.0.2.7"]


@pytest.mark.parametrize("name", ["unknown.test", "odd-é.test"])
async def test_what_cannot_be_resolved_is_an_os_error(name_server: NameServer, name: str) -> None:
    with pytest.raises(OSError, match=r"unknown|ascii"):
        await SystemResolver()(name)


async def test_slow_names_do_not_hold_up_others(name_server: NameServer) -> None:
    resolver = SystemResolver()
    waiting = [asyncio.create_task(resolver(f"slow-{number}.test")) for number in range(60)]
    assert await resolver("fast.test") == ["192.0.2.7"]
    assert not any(task.done() for task in waiting)
    name_server.released.set()
    await asyncio.gather(*waiting)


async def test_only_so_many_are_looked_up_at_once(name_server: NameServer) -> None:
    resolver = SystemResolver(most=2)
    waiting = [asyncio.create_task(resolver(f"slow-{number}.test")) for number in range(5)]
    fast = asyncio.create_task(resolver("fast.test"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(name_server.asked) <= 2
    name_server.released.set()
    await asyncio.gather(fast, *waiting)
    assert len(name_server.asked) == 6
