"""Connections to targets, on aiohttp: kept for the next delivery, made only to addresses that the guard has checked."""

import errno
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import ip_address
from types import SimpleNamespace
from weakref import WeakSet

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from evertick.targets.http.guard import Guard

LINE_BYTES = 4096
MOST_HEADERS = 64
BUFFER_BYTES = 16_384


class Disconnected(aiohttp.ClientError):
    """The other side closed the connection before it answered."""


@dataclass(slots=True)
class Exchange:
    """One request on its way; `reused`: over a connection that was there before."""

    reused: bool = False


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
            for address in await self._guard.addresses(host)
        ]

    async def close(self) -> None:
        """Nothing is held."""


class _Socket(socket.socket):
    """A socket that leaves the set of the open ones when it is closed."""

    others: WeakSet[socket.socket]

    def close(self) -> None:
        self.others.discard(self)
        super().close()


class Connections:
    """Two pools over one guard: one keeps connections, the other, for when many are open, closes each after use."""

    def __init__(
        self, guard: Guard, *, most_open: int, keep_alive_seconds: float, tls: ssl.SSLContext | None = None
    ) -> None:
        self._guard = guard
        self._most_open = most_open
        self._open: WeakSet[socket.socket] = WeakSet()
        self._tls = tls or ssl.create_default_context()
        self._kept = self._session(keepalive_timeout=keep_alive_seconds)
        self._single = self._session(force_close=True)

    @property
    def open(self) -> int:
        return len(self._open)

    def session(self, *, fresh: bool = False) -> aiohttp.ClientSession:
        """Where to send the next request; `fresh`: over a new connection."""
        return self._single if fresh or self.open >= self._most_open else self._kept

    async def close(self) -> None:
        await self._kept.close()
        await self._single.close()

    def checked_socket(self, info: aiohttp.AddrInfoType) -> socket.socket:
        """The last gate: no socket is made for an address that is not permitted, however it came here."""
        family, kind, proto, _, sockaddr = info
        if not self._guard.policy.permits(ip_address(sockaddr[0])):
            raise PermissionError(errno.EACCES, "address not permitted")
        made = _Socket(family, kind, proto)
        made.others = self._open
        self._open.add(made)
        return made

    def _session(self, *, force_close: bool = False, keepalive_timeout: float | None = None) -> aiohttp.ClientSession:
        pooling = {"force_close": True} if force_close else {"keepalive_timeout": keepalive_timeout}
        connector = aiohttp.TCPConnector(
            resolver=CheckedResolver(self._guard),
            socket_factory=self.checked_socket,
            use_dns_cache=False,
            limit=0,  # how many run at once is for the dispatcher and the slots to say
            ssl=self._tls,
            **pooling,
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,  # no proxy of the environment: it would resolve names itself
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),  # one deadline, the delivery's, rules all
            read_bufsize=BUFFER_BYTES,
            max_line_size=LINE_BYTES,
            max_field_size=LINE_BYTES,
            max_headers=MOST_HEADERS,
            middlewares=(_tell_apart,),
            trace_configs=[_reuse_tracing()],
        )


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


def _reuse_tracing() -> aiohttp.TraceConfig:
    async def note(_: aiohttp.ClientSession, context: SimpleNamespace, __: object) -> None:
        context.trace_request_ctx.reused = True

    tracing = aiohttp.TraceConfig()
    tracing.on_connection_reuseconn.append(note)
    return tracing
