"""What an executor has done since it started, as plain counters."""

from dataclasses import dataclass
from typing import assert_never

from evertick.domain.attempt import SUCCEEDED, AttemptOutcome, Deferred, Failed, NotStarted, Succeeded
from evertick.domain.states import Outcome


@dataclass(slots=True)
class Counters:
    """Of attempts. In the end each that was leased is counted once more, unless it was over before."""

    leased: int = 0
    succeeded: int = 0
    failed: int = 0
    timed_out: int = 0
    handed_back: int = 0  # put back before they were started, or stopped with the worker
    lost: int = 0  # their lease ran out here
    stale: int = 0  # of those that ended here: others had ended them before

    @property
    def executed(self) -> int:
        return self.succeeded + self.failed + self.timed_out

    def count(self, outcome: AttemptOutcome) -> None:
        if outcome is SUCCEEDED:
            self.succeeded += 1
            return
        match outcome:
            case Succeeded():
                self.succeeded += 1
            case Failed(result=Outcome.TIMED_OUT):
                self.timed_out += 1
            case Failed():
                self.failed += 1
            case Deferred() | NotStarted():
                self.handed_back += 1
            case _:
                assert_never(outcome)
