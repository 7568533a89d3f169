"""Reads the host of a URL so that it has one meaning: a name to look up, or an address in its one plain spelling.

C libraries read `127.1`, `0x7f.1`, `017700000001` and `2130706433` as 127.0.0.1. Here such a host is no name and no
address: it is refused before anything looks it up.
"""

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import TypeAlias

Host: TypeAlias = str | IPv4Address | IPv6Address
"""A name in lower case, or an address."""

_NAME_MAX_LENGTH = 253
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMERIC = re.compile(r"[0-9]+|0x[0-9a-f]*")


def read_host(text: str) -> Host | None:
    """The host, None if it is none. A dot at the end changes nothing."""
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


def _address(kind: type[IPv4Address] | type[IPv6Address], text: str) -> IPv4Address | IPv6Address | None:
    try:
        return kind(text)
    except AddressValueError:
        return None
