"""What all attacks share: where the server is, keys to it, connections from an address of the attacker's own."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx

ATTACKER = "127.0.0.2"
"""Where attacks come from, so that their connections can be told from others in the kernel's tables. To the server all
of 127.0.0.0/8 is the machine itself (`local`), which has no limit of its own."""
HANGING = "hanging at the victim's host"
"""Counted by the victim, not by the attacker."""
MAX_EXTENSIONS = 8
"""On a busy machine an attack may go on for so many times its length until what is to come of it did."""
NEW_YORK = {"timezone": "America/New_York", "dst_gap": "skip"}
WORKER_TARGET = {"type": "worker", "queue": "attack", "handler": "none"}
BROKEN = (OSError, httpx.HTTPError, asyncio.IncompleteReadError, RuntimeError)
"""How connections end that the server closes; the last is uvloop's word for writing on one that is closed."""
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(slots=True)
class AttackContext:
    """One attack under way. `keys` are admins' of tenants of its own; `is_heavy` asks for the larger form."""

    address: str
    keys: list[str]
    hook_url: str
    is_heavy: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    """What came of it: answers by status, and whatever else the attack counts."""

    @property
    def port(self) -> int:
        port = urlsplit(self.address).port
        assert port is not None
        return port

    def size(self, usual: int, heavy: int) -> int:
        return heavy if self.is_heavy else usual

    def client(self, key: str | None = None) -> httpx.AsyncClient:
        """A client of the API from the attacker's address."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        return httpx.AsyncClient(
            base_url=f"{self.address}/api/v1",
            headers={"Authorization": f"Bearer {key or self.keys[0]}"},
            timeout=600,
            transport=httpx.AsyncHTTPTransport(local_address=ATTACKER, limits=limits),
        )

    async def key(self, role: str) -> str:
        """A key of another role of the first tenant."""
        async with self.client() as client:
            answer = await client.post("/api-keys", json={"role": role})
        return str(answer.json()["api_key"])

    def count(self, answer: httpx.Response) -> httpx.Response:
        self.counts[f"answers {answer.status_code}"] += 1
        self.record_max("largest answer KB", len(answer.content) // 1024)
        return answer

    def record_max(self, name: str, value: int) -> None:
        self.counts[name] = max(self.counts[name], value)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A bare connection; what goes wrong with it is counted and over."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(ATTACKER, 0))
        except OSError:
            self.counts["connections refused"] += 1
            await asyncio.sleep(0.05)
            raise
        try:
            yield reader, writer
        except BROKEN:
            self.counts["closed by the server"] += 1
            raise
        finally:
            with suppress(OSError):
                writer.transport.abort()

    def head(self, method: str, path: str, key: str | None = None, **headers: str | int) -> bytes:
        """The head of a request."""
        lines = [f"{method} {path} HTTP/1.1", "Host: attacked"]
        if key:
            lines.append(f"Authorization: Bearer {key}")
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        return "\r\n".join(lines).encode() + b"\r\n\r\n"


async def held_for(reading: "asyncio.Future[Any]", seconds: float) -> bool:
    """Whether nothing came to read for so long."""
    done, _ = await asyncio.wait([reading], timeout=seconds)
    return not done


async def read_status(reader: asyncio.StreamReader) -> str:
    """The status of an answer, or that the server hung up."""
    line = await reader.readline()
    return f"answers {line.split()[1].decode()}" if line else "hung up"


async def read_body(reader: asyncio.StreamReader) -> bytes:
    """The body of an answer whose first line was read."""
    length = 0
    while (line := (await reader.readline()).strip().lower()) != b"":
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    return await reader.readexactly(length)


async def run_all(works: Iterable[Awaitable[None]]) -> None:
    """Do all at once, whatever becomes of their connections."""
    for result in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(result, BaseException) and not isinstance(result, BROKEN):
            raise result


async def repeat_forever(work: Callable[[], Awaitable[Any]]) -> None:
    """Until the attack is over, whatever goes wrong."""
    while True:
        try:
            await work()
        except BROKEN:
            await asyncio.sleep(0.05)


def ndjson(documents: Iterable[Any]) -> bytes:
    return b"".join(json.dumps(document).encode() + b"\n" for document in documents)
