"""Remembers which hosts had no slot free for long: what else is for them need not wait to find out the same.

Without it a host that hangs would keep all places of a dispatcher busy with waiting, one batch after the other.
"""

import time
from collections.abc import Callable
from urllib.parse import urlsplit

JAM_SECONDS = 5.0


class Jams:
    """A jam begins when somebody waited in vain, and ends when a delivery to the host does, or by itself."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._ends: dict[str, float] = {}

    def begin(self, url: str) -> None:
        now = self._monotonic()
        self._ends = {place: end for place, end in self._ends.items() if end > now}
        self._ends[_place(url)] = now + JAM_SECONDS

    def end(self, url: str) -> None:
        if self._ends:
            self._ends.pop(_place(url), None)

    def holds(self, url: str) -> bool:
        return bool(self._ends) and self._ends.get(_place(url), 0.0) > self._monotonic()


def _place(url: str) -> str:
    """Host and port as they are written: who writes them differently only waits for himself."""
    try:
        return urlsplit(url).netloc
    except ValueError:
        return url  # the guard says what is wrong with it
