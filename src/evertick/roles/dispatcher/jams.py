"""Remembers who had no slot free for long, a host or a tenant: what else is theirs need not wait to find out the same.

Without it a host that hangs would keep all places of a dispatcher busy with waiting, one batch after the other.
"""

import time
from collections.abc import Callable, Hashable
from functools import lru_cache
from urllib.parse import urlsplit

JAM_SECONDS = 5.0
REMEMBERED_URLS = 4096


class Jams:
    """A jam begins when somebody waited in vain, and ends when a delivery to the place does, or by itself."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._ends: dict[Hashable, float] = {}

    def begin(self, place: Hashable) -> None:
        now = self._monotonic()
        self._ends = {place: end for place, end in self._ends.items() if end > now}
        self._ends[place] = now + JAM_SECONDS

    def end(self, place: Hashable) -> None:
        if self._ends:
            self._ends.pop(place, None)

    def holds(self, place: Hashable) -> bool:
        return bool(self._ends) and self._ends.get(place, 0.0) > self._monotonic()


@lru_cache(maxsize=REMEMBERED_URLS)
def host_of(url: str) -> str:
    """Host and port as they are written: who writes them differently only waits for himself."""
    try:
        return urlsplit(url).netloc
    except ValueError:
        return url  # the guard says what is wrong with it
