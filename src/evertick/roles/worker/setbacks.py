"""What it means that a batch of endings could not be recorded."""

from enum import Enum, auto

from evertick.store.database import is_transient, was_conflict

_DATA_CLASSES = frozenset({"22", "23", "54"})
"""Of SQLSTATEs: data exceptions, constraint violations, limits of the server."""


class Setback(Enum):
    """How a statement failed, by whose fault it was."""

    UNKNOWN = auto()  # no answer: it may have been done
    LOCKED = auto()  # rolled back because of others
    UNSTORABLE = auto()  # something in it cannot be stored
    REFUSED = auto()  # the server's own error


def setback_of(error: Exception) -> Setback:
    if was_conflict(error):
        return Setback.LOCKED
    if is_transient(error):
        return Setback.UNKNOWN
    sqlstate = getattr(error, "sqlstate", None)
    if isinstance(sqlstate, str):
        return Setback.UNSTORABLE if sqlstate[:2] in _DATA_CLASSES else Setback.REFUSED
    # The driver could not even send it.
    return Setback.UNSTORABLE if isinstance(error, ValueError | OverflowError) else Setback.UNKNOWN
