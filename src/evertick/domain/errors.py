"""The exceptions of Evertick, one small tree.

EvertickError
├── InvalidInput          what a caller gave cannot be used: names the field and the reason
│   └── InvalidSchedule   … and the field is one that decides when a job fires
│       ├── ScheduleTooCostly   … and finding its fire times takes more steps than a search may
│       └── OverBefore          … and its last fire time has passed
├── InvalidFields         a whole document cannot be used: lists every fault and where it is
├── RunFailed             the run whose result is asked for is dead
│   └── RunCancelled      … or was cancelled
└── ResultNotKept         the run succeeded, and what its handler returned could not be kept
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import NamedTuple, TypeVar

_SHOWN = 100
"""Characters of an excerpt in a message."""
_Ordered = TypeVar("_Ordered", int, timedelta)


class EvertickError(Exception):
    """Any error that Evertick raises on purpose."""


class InvalidInput(EvertickError, ValueError):  # noqa: N818 - says what is wrong, not that it is an error
    """The value of `field` cannot be used, for `reason`."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason

    def __reduce__(self) -> tuple[type["InvalidInput"], tuple[str, str]]:
        return type(self), (self.field, self.reason)


class InvalidSchedule(InvalidInput):
    """A schedule, zone or window that says no usable fire time."""


class ScheduleTooCostly(InvalidSchedule):
    """A schedule whose fire times take more steps to find than one question may: see `schedule.budget`."""


class OverBefore(InvalidSchedule):
    """A schedule that is over before it begins: its instant is past, or its window."""


class Fault(NamedTuple):
    """One thing wrong with a document; `pointer` is an RFC 6901 JSON pointer, such as `/target/url`."""

    pointer: str
    reason: str


class InvalidFields(EvertickError, ValueError):  # noqa: N818 - as InvalidInput
    """A document that cannot be used, with all its faults at once."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(f"{pointer}: {reason}" if pointer else reason for pointer, reason in self.faults))

    def __reduce__(self) -> tuple[type["InvalidFields"], tuple[tuple[Fault, ...]]]:
        return type(self), (self.faults,)


class RunFailed(EvertickError):  # noqa: N818 - as InvalidInput
    """The run has no result, because it did not succeed. `error` is that of its last attempt."""

    def __init__(self, run_id: str, status: str, attempts: int, error: str | None) -> None:
        self.run_id = run_id
        self.status = status
        self.attempts = attempts
        self.error = error
        tried = f" after {attempts} attempt{'s' * (attempts != 1)}" if attempts else ""
        reason = f": {error.partition(chr(10))[0]}" if error else ""
        super().__init__(f"{run_id} is {status}{tried}{reason}")

    def __reduce__(self) -> tuple[type["RunFailed"], tuple[str, str, int, str | None]]:
        return type(self), (self.run_id, self.status, self.attempts, self.error)


class RunCancelled(RunFailed):
    """The run has no result, because it was cancelled."""


class ResultNotKept(EvertickError):  # noqa: N818 - as InvalidInput
    """The run succeeded, and what its handler returned was no JSON, or too long. `excerpt` is its beginning."""

    def __init__(self, run_id: str, excerpt: str) -> None:
        self.run_id = run_id
        self.excerpt = excerpt
        begins = excerpt if len(excerpt) <= _SHOWN else f"{excerpt[:_SHOWN]}…"
        super().__init__(f"what {run_id} returned is not kept: it is no JSON, or too long. It begins: {begins}")

    def __reduce__(self) -> tuple[type["ResultNotKept"], tuple[str, str]]:
        return type(self), (self.run_id, self.excerpt)


def require_at_least(field: str, value: _Ordered, least: _Ordered) -> None:
    """Refuse a value below its least."""
    if value < least:
        raise InvalidInput(field, f"must be at least {least}, not {value}")
