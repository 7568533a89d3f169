"""Decides where a delivery may go: its URL by form, scheme, port and host, then every address that the host has.

A name is resolved once for each connection, all its addresses are checked, and the connection goes to one of these:
a second answer of the name server is never asked for. What cannot be judged is refused.

Which addresses are public is decided by tables of our own: Python's `is_global` differs between releases and is true
for several addresses that lead elsewhere.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

from yarl import URL

from evertick.domain.errors import EvertickError
from evertick.domain.fairness import TenantCounts
from evertick.domain.job.http_target import fault_in_url
from evertick.targets.egress.resolution import Lookups, Resolve
from evertick.targets.egress.slots import one_tenant

DEFAULT_PORTS = (range(80, 81), range(443, 444), range(1024, 65_536))
REMEMBERED_URLS = 4096
NOT_ALLOWED = "not one that is allowed here: the dispatcher's EVERTICK_EGRESS_ALLOW lists those"

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

_NAME_MAX_LENGTH = 253
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMERIC = re.compile(r"[0-9]+|0x[0-9a-f]*")


def read_host(text: str) -> str | Address | None:
    """The host of a URL: a name in lower case, or an address. None if it is neither. A dot at the end changes nothing.

    C libraries read `127.1`, `0x7f.1`, `017700000001` and `2130706433` as 127.0.0.1. Here such a host is no name and no
    address: it is refused before anything looks it up.
    """
    if not text.isascii():
        return None  # full-width digits among them; names beyond ASCII are written as xn--…
    if ":" in text:
        return _address(IPv6Address, text)
    name = text.lower().removesuffix(".")
    labels = name.split(".")
    if _NUMERIC.fullmatch(labels[-1]):
        return _address(IPv4Address, name)
    if len(name) > _NAME_MAX_LENGTH or not all(map(_LABEL.fullmatch, labels)):
        return None
    return name


def _address(kind: type[Address], text: str) -> Address | None:
    try:
        return kind(text)
    except AddressValueError:
        return None


def _networks(*texts: str) -> tuple[Network, ...]:
    return tuple(ip_network(text) for text in texts)


_NEVER = _networks(
    "0.0.0.0/8",  # this network; Linux takes 0.0.0.0 for loopback
    "169.254.0.0/16",  # link-local, with the metadata of most clouds
    "100.100.100.200/32",  # metadata of Alibaba Cloud
    "168.63.129.16/32",  # the host agent of Azure, in public space
    "192.0.0.192/32",  # metadata of Oracle Cloud
    "224.0.0.0/4",  # multicast
    "240.0.0.0/4",  # reserved, and broadcast
    "::/96",  # unspecified and IPv4-compatible; loopback is taken out below
    "::ffff:0:0/96",  # IPv4-mapped
    "::ffff:0:0:0/96",  # IPv4-translated
    "64:ff9b:1::/48",  # NAT64 for local use: where the IPv4 address stands depends on the network
    "2001::/32",  # Teredo
    "2002::/16",  # 6to4
    "fd00:ec2::/32",  # metadata and other services of AWS
    "fd00:42::42/128",  # metadata of Scaleway
    "fd00:a9fe:a9fe::/48",  # metadata of Linode
    "fd20:ce::/32",  # metadata of Google Cloud
    "fe80::/10",  # link-local
    "fec0::/10",  # site-local
    "ff00::/8",  # multicast
)
"""Refused whatever the configuration opens: metadata services, and what is no host or hides another address."""

_NOT_PUBLIC = _networks(
    "10.0.0.0/8",  # private
    "100.64.0.0/10",  # shared by a carrier's customers
    "127.0.0.0/8",  # loopback
    "172.16.0.0/12",  # private
    "192.0.0.0/24",  # protocol assignments
    "192.0.2.0/24",  # documentation
    "192.88.99.0/24",  # relays of 6to4
    "192.168.0.0/16",  # private
    "198.18.0.0/15",  # benchmarking
    "198.51.100.0/24",  # documentation
    "203.0.113.0/24",  # documentation
    "2001::/23",  # protocol assignments: benchmarking, ORCHID, …
    "2001:db8::/32",  # documentation
    "3fff::/20",  # documentation
)
"""Refused unless opened."""

_GLOBAL_UNICAST = IPv6Network("2000::/3")  # all that was ever given out; the rest of IPv6 must be opened
_NAT64 = IPv6Network("64:ff9b::/96")
_LOOPBACK = IPv6Address("::1")
_ISATAP = {0x0000_5EFE, 0x0200_5EFE}  # bits 64 to 95 of an address that ends in an IPv4 address


def is_callable(address: Address, opened: Iterable[Network] = ()) -> bool:
    """Whether a target may have this address: a public one, or one in a network that the configuration opens."""
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        return False
    if address != _LOOPBACK and _is_in(address, _NEVER):
        return False
    inner = _embedded(address)
    if inner is not None and not is_callable(inner, opened):
        return False
    return _is_in(address, opened) or _is_public(address)


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return False
    return not _is_in(address, _NOT_PUBLIC)


def _embedded(address: Address) -> IPv4Address | None:
    """The IPv4 address that a translator or a tunnel would take out of this one."""
    if isinstance(address, IPv4Address):
        return None
    number = int(address)
    if address in _NAT64 or number >> 32 & 0xFFFF_FFFF in _ISATAP:
        return IPv4Address(number & 0xFFFF_FFFF)
    return None


def _is_in(address: Address, networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks)


class DestinationRefused(EvertickError):  # noqa: N818 - says what happened
    """The guard does not let a delivery go there. The message names no address, since its readers may not know it."""


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """What the configuration lets targets be. `opened` are networks beyond the public ones."""

    opened: tuple[Network, ...] = ()
    allow_http: bool = False
    ports: tuple[range, ...] = DEFAULT_PORTS

    def permits(self, address: Address) -> bool:
        return is_callable(address, self.opened)


@dataclass(frozen=True, slots=True)
class Destination:
    """A URL that may be called once its host's addresses are checked; `origin` tells hosts and ports apart."""

    url: URL
    origin: str


class Guard:
    """Judges URLs and names by one policy, which may be replaced at any time."""

    def __init__(
        self, policy: EgressPolicy, resolve: Resolve, tenants: Callable[[], TenantCounts] = one_tenant
    ) -> None:
        self._policy = policy
        self._look_up = Lookups(resolve, tenants)
        # A refusal is not remembered: it costs its caller a whole attempt.
        self.destination = lru_cache(maxsize=REMEMBERED_URLS)(self._destination)

    @property
    def policy(self) -> EgressPolicy:
        return self._policy

    @policy.setter
    def policy(self, policy: EgressPolicy) -> None:
        self._policy = policy
        self.destination.cache_clear()

    def _destination(self, url: str) -> Destination:
        """Judge a URL; an address in it is checked here, because no resolver will see it."""
        reason = fault_in_url(url)
        if reason is not None:
            raise DestinationRefused(f"the URL {reason}")
        parsed = URL(url, encoded=True)
        self._check_scheme(parsed.scheme)
        assert parsed.port is not None
        if not any(parsed.port in ports for ports in self.policy.ports):
            raise DestinationRefused(f"port {parsed.port} is not allowed here")
        host = self._host(parsed.raw_host or "")
        return Destination(parsed.with_host(host), f"{host.removesuffix('.')}:{parsed.port}")

    def _host(self, text: str) -> str:
        host = read_host(text)
        if host is None:
            raise DestinationRefused("the URL's host is neither a name nor a plainly written address")
        if isinstance(host, str):
            return host + "." * text.endswith(".")  # to resolvers it says that the name is complete
        if not self.policy.permits(host):
            raise DestinationRefused(f"the URL's address is not public, and {NOT_ALLOWED}")
        return str(host)

    async def dial(self, host: str, port: int, tenant_id: int, scheme: str | None = None) -> list[str]:
        """The addresses that a client of a tenant's broker may connect to, for a host that a connection or the broker
        itself names. `scheme`: of the URL, if the broker is called by one.
        """
        if scheme is not None:
            self._check_scheme(scheme)
        if not any(port in ports for ports in self.policy.ports):
            raise DestinationRefused(f"port {port} is not allowed here")
        found = read_host(host)
        if found is None:
            raise DestinationRefused("the host is neither a name nor a plainly written address")
        if isinstance(found, str):
            return [str(address) for address in await self.addresses(found, tenant_id)]
        if not self.policy.permits(found):
            raise DestinationRefused(f"the host's address is not public, and {NOT_ALLOWED}")
        return [str(found)]

    def _check_scheme(self, scheme: str) -> None:
        if scheme != "https" and not self.policy.allow_http:
            raise DestinationRefused(
                "the URL must begin with https://: plain http is not allowed here, unless the dispatcher's"
                " EVERTICK_EGRESS_ALLOW_HTTP is true"
            )

    async def addresses(self, name: str, tenant_id: int) -> list[Address]:
        """Resolve a name for a tenant, once. One bad address among good ones is reason enough to refuse them all."""
        try:
            found = [ip_address(text) for text in dict.fromkeys(await self._look_up(name, tenant_id))]
        except ValueError as error:
            raise DestinationRefused("the host has an address that cannot be read") from error
        if not found:
            raise OSError("no addresses")
        if not all(map(self.policy.permits, found)):
            raise DestinationRefused(f"the host has an address that is not public, and {NOT_ALLOWED}")
        return found
