"""Whether a text is a URL that a job may call, by its form alone; where it leads is judged at delivery."""

import functools
import re
from ipaddress import AddressValueError, IPv6Address

from evertick.domain.job.faults import Faults

URL_MAX_LENGTH = 2048

# A backslash is a slash to some parsers and none to others, so a host could be read in two ways.
_VISIBLE = re.compile(r"[!-\[\]-~]*")
_ABSOLUTE = re.compile(r"https?://([^/?#]*)(?:[/?#].*)?", re.IGNORECASE)
_AUTHORITY = re.compile(r"(?:\[([0-9a-f:.]+)\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?", re.IGNORECASE)


def check_url(url: str, at: str, faults: Faults) -> None:
    reason = fault_in_url(url)
    if reason is not None:
        faults.add(at, reason)


@functools.lru_cache(maxsize=4096)
def fault_in_url(url: str) -> str | None:
    """What is wrong with it, without repeating it: it may hold a secret."""
    if len(url) > URL_MAX_LENGTH:
        return f"has at most {URL_MAX_LENGTH} characters, not {len(url)}"
    if not _VISIBLE.fullmatch(url):
        return "must be visible ASCII without backslashes: write other characters as %XX, a host as xn--…"
    absolute = _ABSOLUTE.fullmatch(url)
    if absolute is None:
        return "must be absolute and begin with http:// or https://"
    return _fault_in_authority(absolute[1])


def _fault_in_authority(authority: str) -> str | None:
    if "@" in authority:
        return "must not contain a user name or password: use a header"
    if not authority or authority.startswith(":"):
        return "has no host"
    match = _AUTHORITY.fullmatch(authority)
    if match is None or (match[1] and not _is_ipv6(match[1])):
        return "has a host or port that cannot be read"
    if match[2] and not 1 <= int(match[2]) <= 65_535:
        return "has a port that is not from 1 to 65535"
    return None


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except AddressValueError:
        return False
    return True
