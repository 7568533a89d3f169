"""How many clients may be connected at once, in all and from one address, and which connection is closed for another.

A connection without a request under way is closed for a new one, the longest idle first. So idle connections keep no
client out. Only when every connection has a request under way is a new one turned away. Requests begin in turns.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Protocol, TypeAlias

from evertick.config.values import Network

MAX_TURNED_AWAY = 128
"""Connections over the limit that are kept for a moment, so that their clients can read why."""
LOCAL = "local"
MAX_PROXIES = 8
"""Addresses of a forwarded header that are read, from its end."""
STARTS_PER_TURN = 8
"""A turn of the loop with so many takes a few milliseconds."""


class LimitedConnection(Protocol):
    """What the limits need of a connection. `origin` is the client's address, or the network that counts as one."""

    origin: str

    def abort(self) -> None:
        """Close at once."""

    def sweep(self) -> None:
        """Close if a deadline has passed. Called once per sweep."""


_Ordered: TypeAlias = dict[LimitedConnection, None]


@dataclass(slots=True)
class _Origin:
    count: int = 0
    waiting: _Ordered = field(default_factory=dict)


class ConnectionLimits:
    """The open connections of one server. `refused` is called with a reason for each one that is closed for a limit.

    `proxies` are networks of trusted ones: they have no limit per address, and say whose requests they pass on.
    """

    def __init__(
        self, total: int, per_address: int, refused: Callable[[str], None], proxies: tuple[Network, ...] = ()
    ) -> None:
        self.proxies = proxies
        self._total = total
        self._per_address = per_address
        self.refused = refused
        self._open: set[LimitedConnection] = set()
        self._origins: dict[str, _Origin] = {}
        self._waiting: _Ordered = {}
        self._turned_away: _Ordered = {}

    def origin_of(self, host: str | None) -> str:
        """Whose connection it is, by the limits."""
        return LOCAL if self.is_proxy(host) else origin_of(host)

    def is_proxy(self, host: str | None) -> bool:
        return host is not None and is_in(host, self.proxies)

    def admit(self, connection: LimitedConnection) -> bool:
        """Count a new connection, or return False if there is no room for it."""
        origin = self._origins.setdefault(connection.origin, _Origin())
        if origin.count >= self._per_address and connection.origin != LOCAL:
            has_room = self._evict(origin.waiting)
        else:
            has_room = len(self._open) < self._total or self._evict(self._waiting)
        if not has_room:
            self._turn_away(connection)
            return False
        # Looked up again: the evicted one may have been the last of this origin.
        origin = self._origins.setdefault(connection.origin, origin)
        origin.count += 1
        self._open.add(connection)
        self.wait(connection)
        return True

    def wait(self, connection: LimitedConnection) -> None:
        """It has no request under way."""
        if connection in self._open and connection not in self._waiting:
            self._waiting[connection] = None
            self._origins[connection.origin].waiting[connection] = None

    def work(self, connection: LimitedConnection) -> None:
        """It has a request under way."""
        if connection in self._waiting:
            del self._waiting[connection]
            del self._origins[connection.origin].waiting[connection]

    def remove(self, connection: LimitedConnection) -> None:
        self._turned_away.pop(connection, None)
        if connection not in self._open:
            return
        self.work(connection)
        self._open.remove(connection)
        origin = self._origins[connection.origin]
        origin.count -= 1
        if not origin.count:
            del self._origins[connection.origin]

    def sweep(self) -> None:
        """Let every connection look at its deadlines."""
        for connection in (*self._open, *self._turned_away):
            connection.sweep()

    def _evict(self, waiting: _Ordered) -> bool:
        longest = next(iter(waiting), None)
        if longest is None:
            return False
        self.refused("evicted")
        self.remove(longest)
        longest.abort()
        return True

    def _turn_away(self, connection: LimitedConnection) -> None:
        self.refused("full")
        if not self._origins[connection.origin].count:
            del self._origins[connection.origin]
        if len(self._turned_away) >= MAX_TURNED_AWAY:
            oldest = next(iter(self._turned_away))
            del self._turned_away[oldest]
            oldest.abort()
        self._turned_away[connection] = None


@lru_cache(maxsize=4096)
def origin_of(host: str | None) -> str:
    """What counts as one address: an IPv4 address, an IPv6 network of 64 bits, or this machine."""
    if host is None:
        return LOCAL
    address = ip_address(host)
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is None:
            return LOCAL if address.is_loopback else str(IPv6Address(int(address) >> 64 << 64))
        address = address.ipv4_mapped
    return LOCAL if address.is_loopback else str(address)


def forwarded_origin(header: str, proxies: tuple[Network, ...]) -> str | None:
    """The last address of an `X-Forwarded-For` that is not a trusted proxy's. Who it is may have written all before."""
    for text in reversed(header.rsplit(",", MAX_PROXIES)[-MAX_PROXIES:]):
        try:
            if not is_in(text.strip(), proxies):
                return origin_of(text.strip())
        except ValueError:
            return None
    return None


@lru_cache(maxsize=4096)
def is_in(host: str, networks: tuple[Network, ...]) -> bool:
    """Whether an address is in one of the networks. Raises ValueError if it is none."""
    address = ip_address(host)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in networks)


class RequestQueue:
    """Requests that have arrived and not begun, by client: a few begin in each turn of the event loop, round-robin.

    Without it, all requests that arrive together begin together, and each step of one waits for a step of all the
    others: a thousand refusals at once delay every other response, and the probes, for seconds.
    """

    def __init__(self) -> None:
        self._waiting: dict[Hashable, deque[Callable[[], None]]] = {}
        self._left = STARTS_PER_TURN
        self._is_turn_due = False

    def start(self, begin: Callable[[], None], client: Callable[[], Hashable]) -> None:
        """Begin a request now, or when it is its client's turn. `client` is called only if the request has to wait."""
        if self._left:
            self._left -= 1
            begin()
        else:
            self._waiting.setdefault(client(), deque()).append(begin)
        if not self._is_turn_due:
            self._is_turn_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._is_turn_due = False
        self._left = STARTS_PER_TURN
        while self._left and self._waiting:
            client, requests = next(iter(self._waiting.items()))
            begin = requests.popleft()
            del self._waiting[client]
            if requests:
                self._waiting[client] = requests  # behind the others
            self._left -= 1
            begin()
        if self._left < STARTS_PER_TURN:
            self._is_turn_due = True
            asyncio.get_running_loop().call_soon(self._turn)
