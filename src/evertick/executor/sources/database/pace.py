"""How much to lease at once: as much as is done in about a second, so that no attempt is leased and idle."""

import time

MAX_SIZE = 8192
FAST_SECONDS = 0.5
SLOW_SECONDS = 2.0


class Pace:
    """The size of the next lease, which follows how long the last ones took; never below `least`."""

    def __init__(self, least: int) -> None:
        self._least = least
        self.size = least

    def finished(self, seconds: float, *, is_cut: bool) -> None:
        """A batch was done after so long. `is_cut`: its size kept it from being larger."""
        if seconds < FAST_SECONDS and is_cut:
            self.size = max(self._least, min(2 * self.size, MAX_SIZE))
        elif seconds > SLOW_SECONDS:
            self.size = max(self._least, self.size // 2)


class Batch:
    """The leases that one statement gave. The end of the last of them adjusts the pace."""

    __slots__ = ("_begun", "_is_cut", "_leases", "_pace")

    def __init__(self, pace: Pace, leases: int, *, is_cut: bool) -> None:
        self._pace = pace
        self._leases = leases
        self._is_cut = is_cut
        self._begun = time.monotonic()

    def lease_done(self) -> None:
        self._leases -= 1
        if not self._leases:
            self._pace.finished(time.monotonic() - self._begun, is_cut=self._is_cut)
