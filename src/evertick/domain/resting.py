"""How long to rest after work of tenants that have much to do, so that others with little are not delayed by it.

To be next in turn does not help while every step of the way waits for a core: the process, the database and the
receiver are busy with the flood. So a process rests after each piece of the flood, the longer the more it delays
others, up to nine times as long as it worked. Where there are cores enough nobody is delayed, and there is no rest.
"""

USUAL_SECONDS = 0.01
"""The usual delay, until it was seen."""
LEAST_USUAL_SECONDS = 0.005
ALLOWED = 1.3
"""So many times the usual delay is no reason to rest longer."""
SLOWER, FASTER = 1 / 256, 1 / 16
"""What one delay changes of the usual one. Down faster than up: what is delayed is not usual."""
PERIOD_SECONDS = 0.1
"""How often the factor changes: a change shows only after a while."""
RISE, FALL = 0.25, 0.05
MOST = 9.0
"""At most nine tenths of the time are rest, and only while that helps."""
LONGEST_SECONDS = 0.1
"""A piece that took longer waited for something."""
TRIAL_SECONDS = 5.0
HELPFUL = 0.9
"""After so long, rests must have brought the delay down to this part of what it was."""
FORGOTTEN_SECONDS = 2.0
"""After so long without others there is nobody to rest for."""


class Resting:
    """Delays of tenants with little to do: alone, which is usual, or beside tenants with much. Times are monotonic."""

    def __init__(self) -> None:
        self.factor = 0.0
        self._usual = USUAL_SECONDS
        self._since = self._noted = 0.0
        self._sum = 0.0
        self._count = 0
        self._before = 0.0  # the delay without rests
        self._trial_since = 0.0  # since when rests are as long as they may be
        self._trial = 0.0  # the delay since then, on average

    def note_alone(self, delay: float, now: float) -> None:
        if now > self._noted + FORGOTTEN_SECONDS:
            more = min(delay, 2 * self._usual) - self._usual
            self._usual += (SLOWER if more > 0 else FASTER) * more

    def note_beside(self, delay: float, now: float) -> None:
        self._noted = now
        self._sum += delay
        self._count += 1
        if now < self._since + PERIOD_SECONDS:
            return
        delay = self._sum / self._count
        is_delayed = delay > ALLOWED * max(self._usual, LEAST_USUAL_SECONDS)
        if not self.factor:
            self._before = delay
        self._give_up_in_vain(delay, now)
        self.factor = min(self.factor + RISE, MOST) if is_delayed else max(self.factor - FALL, 0.0)
        self._since, self._sum, self._count = now, 0.0, 0

    def _give_up_in_vain(self, delay: float, now: float) -> None:
        """If the longest rests did not make delays shorter, something else is the cause, and they are usual."""
        if self.factor < MOST:
            self._trial_since, self._trial = now, delay
            return
        self._trial += (delay - self._trial) / 8
        if now > self._trial_since + TRIAL_SECONDS:
            if self._trial > HELPFUL * self._before:
                self._usual, self.factor = self._trial, 0.0
            self._trial_since = now

    def after(self, worked: float, now: float) -> float:
        """How many seconds to rest after so much work for tenants with much to do."""
        if now > self._noted + FORGOTTEN_SECONDS:
            self.factor = 0.0
        return min(self.factor * worked, LONGEST_SECONDS)
