"""The exceptions of Evertick, one small tree.

EvertickError
├── InvalidInput          what a caller gave cannot be used: names the field and the reason
│   └── InvalidSchedule   … and the field is one that decides when a job fires
│       └── ScheduleTooCostly   … and finding its fire times takes more steps than a search may
└── InvalidFields         a whole document cannot be used: lists every fault and where it is
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import NamedTuple, TypeVar

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


def require_at_least(field: str, value: _Ordered, least: _Ordered) -> None:
    """Refuse a value below its least."""
    if value < least:
        raise InvalidInput(field, f"must be at least {least}, not {value}")
