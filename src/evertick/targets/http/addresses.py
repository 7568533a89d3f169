"""Which IP addresses may be called. Pure, and from tables of its own: Python's `is_global` differs between releases
and is true for several addresses that lead elsewhere.
"""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network


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
