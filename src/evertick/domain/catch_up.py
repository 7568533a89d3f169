"""How fast timers that an outage left fire: together with everything else, a factor of the normal rate.

Normal is what fired in the last minute apart from catch-up and what follows from it, on average, and at least a floor:
after a long outage few timers are on time, since each recurring job has its one timer in the past. As jobs catch up,
the average comes to what they need.
"""

from datetime import timedelta
from math import exp

from evertick.domain.schedule.instants import SECOND_US

OUTAGE = timedelta(seconds=60)
"""Nobody held a partition for longer than this: an outage. What was due so long before its end is left from it."""
AVERAGE_SECONDS = 60.0
BURST_SECONDS = 1.0
"""So much of the rate may be left over from before, or owed; at least one timer, however low the rate is."""


class CatchUpBudget:
    """A token bucket that fills at `factor` times the normal rate.

    All that fires uses tokens, and only catch-up has to wait for them. Others may leave a debt, of which
    `BURST_SECONDS` count: a herd on time does not stop a catch-up for longer.
    """

    def __init__(self, factor: float, now_us: int) -> None:
        self._factor = factor
        self._as_of_us = now_us
        self._average = 0.0
        self._tokens = 0.0

    def rate(self, floor: float) -> float:
        """How many may fire each second; `floor` is the least that counts as normal."""
        return self._factor * max(self._average, floor)

    def allowed(self, now_us: int, floor: float) -> int:
        """How many timers of catch-up may fire by now."""
        self._advance(now_us, floor)
        return max(0, int(self._tokens))

    def spend(self, others: int, catch_up: int, following: int = 0) -> None:
        """So many fired, at the time of the last call.

        `following`: retries of catch-up, and ticks of it that waited for their turn. They are not normal: a catch-up
        whose runs fail must not become faster by that.
        """
        self._tokens -= others + catch_up + following
        self._average += others / AVERAGE_SECONDS

    def _advance(self, now_us: int, floor: float) -> None:
        seconds = max(0, now_us - self._as_of_us) / SECOND_US  # the clock may have been set back
        self._as_of_us = now_us
        rate = self.rate(floor)
        burst = max(1.0, rate * BURST_SECONDS)
        self._tokens = min(max(self._tokens, -burst) + rate * seconds, burst)
        self._average *= exp(-seconds / AVERAGE_SECONDS)
