"""Receivers on loopback, good and bad, and deliveries that may reach them."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from ipaddress import ip_network
from typing import Any

from evertick.contract.target import HttpTarget
from evertick.domain.attempt import AttemptOutcome
from evertick.runtime.clock import VirtualClock
from evertick.targets.egress.guard import EgressPolicy, Guard
from evertick.targets.egress.resolution import Resolve
from evertick.targets.http.delivery import DeliverySettings, HttpDelivery
from evertick.targets.http.request import DeliveryRequest
from evertick.targets.http.signing import Secret

NOW = datetime(2026, 6, 8, 13, 0, 5, tzinfo=UTC)
SECRET = Secret(b"a secret of more than 24 bytes..")
LOOPBACK = EgressPolicy(opened=(ip_network("127.0.0.0/8"),), allow_http=True)
LONG = 120.0
"""Seconds that no test should come near: reaching them means that something hangs."""

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

ATTEMPT = DeliveryRequest(
    tenant_id=1,
    target=HttpTarget("https://example.com/hook"),
    body=b'{"report_type":"weekly"}',
    secrets=(SECRET,),
    run_id="run_000000000001000001wqnr2nt000",
    job_id="job_0000000000010",
    job_name="send-weekly-report",
    scheduled_at=datetime(2026, 6, 8, 13, tzinfo=UTC),
    attempt=1,
    reason="tick",
    idempotency_key="report-2026-W24",
    fencing_token=1781532000000001,
    traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
)


def attempt(
    url: str, *, method: str = "POST", headers: dict[str, str] | None = None, **changes: Any
) -> DeliveryRequest:
    return replace(ATTEMPT, target=HttpTarget(url, method, headers or {}), **changes)


@dataclass
class Received:
    """One request as a receiver saw it."""

    line: str
    headers: dict[str, str]
    body: bytes


async def read_request(reader: asyncio.StreamReader) -> Received:
    """The next request of a connection; IncompleteReadError when there is none."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in head[1:] if line)
    lower = {name.lower(): value for name, value in headers.items()}
    return Received(head[0], lower, await reader.readexactly(int(lower.get("content-length", 0))))


@dataclass
class Log:
    """Answers every request with `answer`, keeps connections, and notes what came."""

    answer: bytes = OK
    received: list[Received] = field(default_factory=list)
    connections: int = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while True:
            self.received.append(await read_request(reader))
            writer.write(self.answer)


@asynccontextmanager
async def serving(handler: Handler, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server on loopback for as long as the block runs; yields its port."""
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await handler(reader, writer)
        finally:
            tasks.discard(task)
            writer.transport.abort()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


async def to_loopback(_: str) -> list[str]:
    """Resolves every name to where the receivers are."""
    return ["127.0.0.1"]


@asynccontextmanager
async def delivering(
    policy: EgressPolicy = LOOPBACK, resolve: Resolve = to_loopback, **settings: Any
) -> AsyncIterator[HttpDelivery]:
    async with HttpDelivery(Guard(policy, resolve), VirtualClock(NOW), DeliverySettings(**settings)) as delivery:
        yield delivery


async def deliver_to(handler: Handler, deadline_seconds: float = LONG, **changes: Any) -> AttemptOutcome:
    """Deliver one attempt to a receiver of its own, and fail if that takes much longer than its deadline."""
    async with serving(handler) as port, delivering() as delivery, asyncio.timeout(LONG + 1):
        return await delivery.deliver(attempt(f"http://receiver.test:{port}/hook", **changes), deadline_seconds)
