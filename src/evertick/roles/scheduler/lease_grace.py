"""Decides from when on a reaper may take leases that have run out.

While the database was away, workers could not extend their leases although they live; when its clock is set forward,
leases run out before they could. So a reaper waits until it has been in touch with the database for a while without
interruption: in that time each live worker has extended its leases.
"""

import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

STEP_SECONDS = 1.0
"""What the database's clock may differ by from the monotonic one, between two looks, without having been set."""

SILENCE_SECONDS = 5.0
"""Between two looks, on a machine that has much else to do; longer where the grace is."""


class LeaseGrace:
    """Measures by a monotonic clock for how long each partition has been watched without interruption."""

    def __init__(self, span: timedelta, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._seconds = span.total_seconds()
        self._longest_silence = max(self._seconds, SILENCE_SECONDS)
        self._monotonic = monotonic
        self._since: dict[int, float] = {}
        self._asked = 0.0
        self._answered = 0.0
        self._now_at: datetime | None = None

    def interrupt(self) -> None:
        """Start over: the database could not be reached."""
        self._since.clear()
        self._now_at = None

    def look(self, partitions: Iterable[int], now_at: datetime, asked: float) -> bool:
        """Note what the database's clock says, asked at an instant of the monotonic clock; was the clock set?"""
        answered = self._monotonic()
        is_step = self._is_step(now_at, asked, answered)
        if is_step or answered - self._answered > self._longest_silence:
            self._since.clear()
        self._asked, self._answered, self._now_at = asked, answered, now_at
        self._since = {partition: self._since.get(partition, answered) for partition in partitions}
        return is_step

    def over(self) -> list[int]:
        """The partitions whose leases may be reaped."""
        now = self._monotonic()
        if now - self._answered > self._longest_silence:
            return []  # this process was stopped, or its statements hung
        return [partition for partition, since in self._since.items() if now - since >= self._seconds]

    def latest_at(self) -> datetime:
        """The latest that it can be in the database, unless its clock was set since the last look."""
        assert self._now_at is not None
        return self._now_at + timedelta(seconds=self._monotonic() - self._asked)

    def _is_step(self, now_at: datetime, asked: float, answered: float) -> bool:
        if self._now_at is None:
            return False
        went = (now_at - self._now_at).total_seconds()
        return not asked - self._answered - STEP_SECONDS <= went <= answered - self._asked + STEP_SECONDS
