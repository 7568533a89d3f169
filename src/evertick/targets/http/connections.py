"""Connections to targets, on aiohttp: kept for the next delivery, made only to addresses that the guard has checked."""

import errno
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from ipaddress import ip_address
from weakref import finalize

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from evertick.targets.egress.guard import Guard

LINE_BYTES = 4096
MAX_HEADERS = 64
BUFFER_BYTES = 16_384


class Disconnected(aiohttp.ClientError):
    """The other side closed the connection before it answered."""


async def send(
    session: aiohttp.ClientSession, method: str, url: URL, headers: dict[str, str], body: bytes | None
) -> aiohttp.ClientResponse:
    """The answer, once its head is there. The caller closes it."""
    data = None if body is None else aiohttp.BytesPayload(body)  # else aiohttp would look up how to send bytes
    return await session.request(method, url, headers=headers, data=data, allow_redirects=False)


async def _tell_apart(
    request: aiohttp.ClientRequest,
    handler: Callable[[aiohttp.ClientRequest], Awaitable[aiohttp.ClientResponse]],
) -> aiohttp.ClientResponse:
    """Keep aiohttp from sending some methods again by itself: whether to is for the delivery to say, for them all."""
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise Disconnected from error


@dataclass(slots=True)
class Exchange:
    """One request on its way. What aiohttp calls back knows only a name or an address; here is whose it is.

    `is_new`: a connection was made for it; else it goes over one that was there before.
    """

    tenant_id: int
    origin: str
    is_new: bool = False
    is_kept: bool = True


current: ContextVar[Exchange] = ContextVar("exchange")


class CheckedResolver(AbstractResolver):
    """Gives aiohttp the addresses that the guard has let pass, which it connects to as they are."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_UNSPEC,  # noqa: ARG002 - aiohttp's
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=str(address),
                port=port,
                family=socket.AF_INET if address.version == 4 else socket.AF_INET6,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in await self._guard.addresses(host, current.get().tenant_id)
        ]

    async def close(self) -> None:
        """Nothing is held."""


class _Socket(socket.socket):
    """A socket that says when it is closed."""

    ended: Callable[[], object]

    def close(self) -> None:
        self.ended()
        super().close()


class Connections:
    """Two pools over one guard: one keeps connections, the other, for when many are open, closes each after use."""

    def __init__(
        self, guard: Guard, *, most_open: int, keep_alive_seconds: float, tls: ssl.SSLContext | None = None
    ) -> None:
        self._guard = guard
        self._most_open = most_open
        self.open = 0
        self.idle: dict[str, int] = {}
        self._tls = tls or ssl.create_default_context()
        self._keep_alive_seconds = keep_alive_seconds
        self._retired: list[aiohttp.ClientSession] = []
        self._kept = self._session(keepalive_timeout=keep_alive_seconds)
        self._single = self._session(force_close=True)

    def begin(self, exchange: Exchange, *, fresh: bool = False) -> aiohttp.ClientSession:
        """Where to send the exchange's request; `fresh`: over a new connection. The caller says when it has ended."""
        current.set(exchange)
        exchange.is_new = False
        exchange.is_kept = not fresh and (self.idle.get(exchange.origin, 0) > 0 or self.open < self._most_open)
        if not exchange.is_kept:
            return self._single
        self._add_idle(exchange.origin, -1)
        return self._kept

    def end(self, exchange: Exchange) -> None:
        if exchange.is_kept:
            self._add_idle(exchange.origin, 1)

    def renew(self) -> None:
        """Use no kept connection again: it may lead to an address that the guard no longer permits.

        Requests under way come to their end. Their connections are then idle in the old session, and closed by it.
        """
        self._retired.append(self._kept)
        self._kept = self._session(keepalive_timeout=self._keep_alive_seconds)

    async def close(self) -> None:
        for session in (self._kept, self._single, *self._retired):
            await session.close()

    def checked_socket(self, info: aiohttp.AddrInfoType) -> socket.socket:
        """The last gate: no socket is made for an address that is not permitted, however it came here."""
        family, kind, proto, _, sockaddr = info
        if not self._guard.policy.permits(ip_address(sockaddr[0])):
            raise PermissionError(errno.EACCES, "address not permitted")
        exchange = current.get()
        exchange.is_new = True
        made = _Socket(family, kind, proto)
        kept_for = exchange.origin if exchange.is_kept else None
        made.ended = ended = finalize(made, self._count, kept_for, -1)
        ended.atexit = False
        self._count(kept_for, 1)
        return made

    def _count(self, kept_for: str | None, change: int) -> None:
        self.open += change
        if kept_for is not None:
            self._add_idle(kept_for, change)

    def _add_idle(self, origin: str, change: int) -> None:
        """Count the kept connections of an origin that no request is on. aiohttp knows them too, but does not tell."""
        idle = self.idle.get(origin, 0) + change
        if idle:
            self.idle[origin] = idle
        else:
            self.idle.pop(origin, None)

    def _session(self, *, force_close: bool = False, keepalive_timeout: float | None = None) -> aiohttp.ClientSession:
        pooling = {"force_close": True} if force_close else {"keepalive_timeout": keepalive_timeout}
        connector = aiohttp.TCPConnector(
            resolver=CheckedResolver(self._guard),
            socket_factory=self.checked_socket,
            use_dns_cache=False,
            limit=0,  # the dispatcher and the slots limit how many run at once
            ssl=self._tls,
            **pooling,
        )
        # So set, no answer costs more memory or time than a delivery may.
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,  # no proxy of the environment: it would resolve names itself
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=None
            ),  # the delivery has one deadline for everything
            read_bufsize=BUFFER_BYTES,
            max_line_size=LINE_BYTES,
            max_field_size=LINE_BYTES,
            max_headers=MAX_HEADERS,
            middlewares=(_tell_apart,),
        )
