"""What a worker has done since it started, as plain counters."""

from dataclasses import dataclass

from evertick.domain.states import Outcome
from evertick.store.outcomes import Ending

_SUCCESS = Outcome.SUCCESS.value


@dataclass(slots=True)
class Figures:
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

    def count(self, ending: Ending) -> None:
        if ending.result == _SUCCESS:
            self.succeeded += 1
            return
        match Outcome(ending.result):
            case Outcome.FAILED:
                self.failed += 1
            case Outcome.TIMED_OUT:
                self.timed_out += 1
            case Outcome.DEFERRED:
                self.handed_back += 1
            case _:
                raise AssertionError(ending.result)
