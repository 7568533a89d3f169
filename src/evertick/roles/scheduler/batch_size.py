"""How many timers one firing takes.

Few after a pause, then twice as many each time, so that the first of very many do not wait for the others. Half as many
after a statement that took too long or ran into locks. And while several tenants have timers due, so few that a
statement is short: a timer that falls due waits until the statement under way has ended.
"""

BATCH = 4_000
"""Timers per statement: large enough to share its cost, small enough for a takeover not to wait for long."""
FIRST_BATCH = 250
"""After a pause: so that the first of very many that are due at one instant do not wait for the others."""
SMALLEST_BATCH = 50
"""However often a batch was too much for the time that a statement has."""
SHARED_BATCH = 200
"""While several tenants have timers due, however long a batch takes: with fewer, statements cost more than timers."""
SHARED_SECONDS = 0.01
"""The aim for a batch then."""
ALONE_SECONDS = 10.0
"""So long after the last batch with timers of several tenants, the only tenant with timers due counts as alone."""


class BatchSize:
    """The sizes of one scheduler's batches. Times are monotonic."""

    def __init__(self) -> None:
        self._next = FIRST_BATCH
        self._most = BATCH
        self._shared = SHARED_BATCH
        self._alone_from = 0.0

    @property
    def is_first(self) -> bool:
        """Whether the next batch is the first after a pause."""
        return self._next <= FIRST_BATCH

    def next(self, now: float) -> int:
        """The size of the next batch."""
        size = min(self._next, self._most)
        return size if now >= self._alone_from else min(size, self._shared)

    def taken(self, size: int, *, is_more_due: bool) -> None:
        """A batch of this size was taken, and as far as is known more is due."""
        self._next = min(2 * size, BATCH) if is_more_due else FIRST_BATCH

    def fired(self, tried: int, tenants: int, began: float, now: float) -> None:
        """A batch with so many timers of so many tenants was fired."""
        if tenants > 1:
            self._alone_from = now + ALONE_SECONDS
        if tried >= SHARED_BATCH // 2:  # the time of a smaller one says little
            change = min(SHARED_SECONDS / max(now - began, 0.001), 2.0)
            self._shared = max(SHARED_BATCH, min(round(tried * change), BATCH))

    def halve(self, tried: int) -> None:
        """So many were too many at once."""
        self._most = max(SMALLEST_BATCH, tried // 2)

    def limit(self, most: int) -> None:
        """Take no more than this next time."""
        self._most = min(self._most, max(1, most))

    def went_well(self) -> None:
        self._most = min(2 * self._most, BATCH)
