"""What lint answers with."""

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much a finding matters, the worst first."""

    ERROR = "error"  # it will not run at all
    WARNING = "warning"  # ticks get lost, doubled or crowded, or are not the ones that were meant
    INFO = "info"  # works as documented, may surprise


@dataclass(frozen=True, slots=True)
class Finding:
    """One trap: a stable `code` for programs, a `message` for people."""

    code: str
    severity: Severity
    message: str
