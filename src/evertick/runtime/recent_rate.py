"""How much of something happens per second lately, for heartbeats to tell."""

import time
from collections import deque
from collections.abc import Callable

WINDOW_SECONDS = 30.0


class RecentRate:
    """Of a number that only grows, which `count` reads. One caller asks for it, again and again."""

    def __init__(self, count: Callable[[], int], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._count = count
        self._monotonic = monotonic
        self._seen = deque([(monotonic(), count())])

    def per_second(self) -> float:
        """The average since the first look of the last half minute, or since the start."""
        now, counted = self._monotonic(), self._count()
        while len(self._seen) > 1 and self._seen[1][0] <= now - WINDOW_SECONDS:
            self._seen.popleft()
        began, before = self._seen[0]
        self._seen.append((now, counted))
        return max(counted - before, 0) / (now - began) if now > began else 0.0
