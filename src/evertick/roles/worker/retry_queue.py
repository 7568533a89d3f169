"""Endings that are tried apart from the others, each again after a pause of its own that doubles."""

from collections import Counter
from collections.abc import Callable, Collection
from typing import TypeAlias

from evertick.roles.worker.waiting import token_of
from evertick.store.lanes import Leased
from evertick.store.outcomes import Ending, Token

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 30.0

Entry: TypeAlias = tuple[Leased, Ending]
"""An attempt, and how it ended."""


class _Delayed:
    __slots__ = ("due", "entry", "pause")

    def __init__(self, entry: Entry, now: float) -> None:
        self.entry = entry
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
        """Whether an ending of the lease is here."""
        return self._leases[lease_id] > 0

    @property
    def leases(self) -> set[int]:
        """The leases of the endings that are here."""
        return set(self._leases)

    def add(self, entry: Entry) -> None:
        """Take in an ending, or put off one that is here, to be tried with the same or another content."""
        token = token_of(entry[0])
        delayed = self._delayed.get(token)
        if delayed is None:
            self._delayed[token] = _Delayed(entry, self._monotonic())
            self._leases[entry[0].lease_id] += 1
            return
        delayed.entry = entry
        delayed.pause = min(2 * delayed.pause, LONGEST_PAUSE)
        delayed.due = self._monotonic() + delayed.pause

    def remove(self, entries: Collection[Entry]) -> None:
        for leased, _ in entries:
            del self._delayed[token_of(leased)]
            self._leases[leased.lease_id] -= 1
        self._leases += Counter()  # forgets those at zero

    def ready(self, most: int) -> list[Entry]:
        """Those whose turn has come, so many at most."""
        now = self._monotonic()
        return [delayed.entry for delayed in self._delayed.values() if delayed.due <= now][:most]

    def pause(self, longest: float) -> float:
        """How long until the next one's turn."""
        first = min((delayed.due for delayed in self._delayed.values()), default=None)
        return longest if first is None else max(0.0, min(first - self._monotonic(), longest))
