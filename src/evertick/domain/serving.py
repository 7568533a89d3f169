"""Who serves what: which handlers of which queues have a worker, and what is said of a run that waits for one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

UNSERVED_AFTER = timedelta(seconds=5)
"""So long a run may wait before it is said that no worker serves it: a worker that has just started is known soon."""
UNTAKEN_AFTER = timedelta(minutes=1)
"""The same of a run that a worker could take."""
_UNITS = (("days", 86_400), ("h", 3600), ("min", 60), ("s", 1))


class AppVersion(NamedTuple):
    """An app, and the digest of the names of all jobs that its code declares."""

    app: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class Served:
    """How many workers serve a queue, and each handler of it. The handler None stands for any."""

    queues: Mapping[str, int] = field(default_factory=dict)
    handlers: Mapping[tuple[str, str | None], int] = field(default_factory=dict)

    def workers(self, queue: str, handler: str | None) -> int:
        """How many workers serve the handler; of None, those that serve any."""
        of_any = self.handlers.get((queue, None), 0)
        return of_any if handler is None else of_any + self.handlers.get((queue, handler), 0)


def waiting_text(served: Served, queue: str, handler: str | None, waits: timedelta) -> str | None:
    """Why an attempt that is ready waits for a worker; None if it does not for long."""
    if waits < UNSERVED_AFTER:
        return None
    if not served.workers(queue, handler):
        if handler is None:
            return f"no dispatcher serves queue {queue!r}"
        return f"no worker serves handler {handler!r} on queue {queue!r}"
    if waits < UNTAKEN_AFTER:
        return None
    return f"no worker took it for {rough_duration(waits)}"


def rough_duration(time: timedelta) -> str:
    """In the largest unit of which there are two at least, as in `20 min`."""
    seconds = time.total_seconds()
    for unit, length in _UNITS:
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s"
