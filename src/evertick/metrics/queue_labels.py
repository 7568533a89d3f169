"""Which queues have series of their own. Tenants name their queues, so their number must be bounded.

The queues that the settings name, or else the first names that the process meets. All others are `other`. Queues of
equal names of different tenants share a series. A name that has a series keeps it until the process ends, so that no
series comes and goes.
"""

from collections.abc import Iterable, Sequence

OTHER = "other"
MAX_QUEUES = 50
"""With six histograms of 24 bounds for each role and queue, a process has at most some ten thousand series."""


class QueueLabels:
    """`chosen`: the names that have a series. None: the first `most` that come."""

    def __init__(self, most: int = MAX_QUEUES) -> None:
        self._most = most
        self._is_chosen = False
        self._known: dict[str, str] = {}

    def choose(self, names: Sequence[str] | None) -> None:
        """Set at the start of a process, before anything is counted."""
        self._is_chosen = names is not None
        self._known = {name: name for name in names or ()}

    def of(self, queue: str) -> str:
        label = self._known.get(queue)
        if label is None:
            if self._is_chosen or len(self._known) >= self._most:
                return OTHER
            label = self._known[queue] = queue
        return label

    @property
    def known(self) -> Iterable[str]:
        return self._known


queue_labels = QueueLabels()
"""Of this process."""
