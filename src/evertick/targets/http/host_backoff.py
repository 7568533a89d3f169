"""Remembers for which hosts a tenant had no slot free: its next deliveries to them are put back without waiting.

Without it, deliveries that wait for a host that hangs would take all slots of their tenant, one batch after the other.
"""

import time
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

BACKOFF_SECONDS = 5.0
REMEMBERED_URLS = 4096


class TenantHost(NamedTuple):
    """A host as one tenant calls it."""

    tenant_id: int
    host: str


class HostBackoff:
    """Begins when a delivery got no slot in time. Ends with a delivery to the same host, or after BACKOFF_SECONDS."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._ends: dict[TenantHost, float] = {}

    def begin(self, busy: TenantHost) -> None:
        now = self._monotonic()
        self._ends = {each: end for each, end in self._ends.items() if end > now}
        self._ends[busy] = now + BACKOFF_SECONDS

    def end(self, free: TenantHost) -> None:
        if self._ends:
            self._ends.pop(free, None)

    def holds(self, tenant_host: TenantHost) -> bool:
        return bool(self._ends) and self._ends.get(tenant_host, 0.0) > self._monotonic()


@lru_cache(maxsize=REMEMBERED_URLS)
def host_of(url: str) -> str:
    """Host and port as they are written. Two spellings count as two hosts, which delays nobody else."""
    try:
        return urlsplit(url).netloc
    except ValueError:
        return url  # the guard says what is wrong with it
