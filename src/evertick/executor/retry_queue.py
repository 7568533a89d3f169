"""Outcomes that are recorded apart from the others, each tried again after a pause of its own that doubles."""

from collections import Counter
from collections.abc import Callable, Collection

from evertick.domain.attempt import Token
from evertick.executor.source import EndedAttempt

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 30.0


class _Delayed:
    __slots__ = ("due", "ended", "pause")

    def __init__(self, ended: EndedAttempt, now: float) -> None:
        self.ended = ended
        self.pause = FIRST_PAUSE
        self.due = now + FIRST_PAUSE


class RetryQueue:
    """Few of many, so nothing here is fast."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._delayed: dict[Token, _Delayed] = {}
        self._leases: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._delayed)

    def holds(self, lease_id: int) -> bool:
        """Whether an outcome of the lease is here."""
        return self._leases[lease_id] > 0

    @property
    def leases(self) -> set[int]:
        """The leases of the outcomes that are here."""
        return set(self._leases)

    def add(self, ended: EndedAttempt) -> None:
        """Take in an outcome, or put off one that is here, to be tried with the same or another content."""
        token = ended[0].token
        delayed = self._delayed.get(token)
        if delayed is None:
            self._delayed[token] = _Delayed(ended, self._monotonic())
            self._leases[ended[0].lease_id] += 1
            return
        delayed.ended = ended
        delayed.pause = min(2 * delayed.pause, LONGEST_PAUSE)
        delayed.due = self._monotonic() + delayed.pause

    def remove(self, outcomes: Collection[EndedAttempt]) -> None:
        for attempt, *_ in outcomes:
            del self._delayed[attempt.token]
            self._leases[attempt.lease_id] -= 1
        self._leases += Counter()  # forgets those at zero

    def ready(self, most: int) -> list[EndedAttempt]:
        """Those whose turn has come, so many at most."""
        now = self._monotonic()
        return [delayed.ended for delayed in self._delayed.values() if delayed.due <= now][:most]

    def pause(self, longest: float) -> float:
        """How long until the next one's turn."""
        first = min((delayed.due for delayed in self._delayed.values()), default=None)
        return longest if first is None else max(0.0, min(first - self._monotonic(), longest))
