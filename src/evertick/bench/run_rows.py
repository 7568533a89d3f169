"""The rows that plain runs leave: an attempt and an outcome of each, and the timer that its job has."""

import random
from collections.abc import Iterable
from datetime import datetime, timedelta

from evertick.domain.ids import PARTITIONS
from evertick.domain.schedule.instants import to_us
from evertick.store.bench_floor import AttemptRow, OutcomeRow, TimerRow

QUEUE_ID = 1
NORMAL = 1
WORKER = "worker.example-12345-a1b2c3"
"""As long as the names are that workers give themselves."""
PERIOD = timedelta(days=1)
TOOK = timedelta(milliseconds=1)


class RunRows:
    """Runs by number, all fired at one instant; jobs are spread evenly over the partitions."""

    def __init__(self, fire_at: datetime, seed: int) -> None:
        self.fire_at = fire_at
        self.next_at = fire_at + PERIOD
        self._seed = seed
        self._first_seq = to_us(fire_at) + 1
        # In which order is up to the seed.
        self._partitions = random.Random(seed).sample(range(PARTITIONS), PARTITIONS)  # noqa: S311 - a repeatable load

    def following(self) -> "RunRows":
        """The next run of each job."""
        return RunRows(self.next_at, self._seed)

    def attempts(self, numbers: Iterable[int]) -> list[AttemptRow]:
        at = self.fire_at
        return [
            AttemptRow(
                self._lane_id(number), self._first_seq + number, self._job_id(number), at, at, 1, 1, "tick", 1, False
            )
            for number in numbers
        ]

    def outcomes(self, numbers: Iterable[int]) -> list[OutcomeRow]:
        started_at, finished_at = self.fire_at, self.fire_at + TOOK
        return [
            OutcomeRow(
                *(self._lane_id(number), self._first_seq + number, started_at, finished_at, "success"),
                *(None, True, WORKER, None, None),
            )
            for number in numbers
        ]

    def timers(self, numbers: Iterable[int]) -> list[TimerRow]:
        """The jobs' timers before all that."""
        at = self.fire_at
        return [
            TimerRow(
                *(self._job_id(number), at, at, 1, 1, None, None, QUEUE_ID, 1),
                *("tick", None, self._partition(number), 1, NORMAL),
            )
            for number in numbers
        ]

    def _partition(self, number: int) -> int:
        return self._partitions[number % PARTITIONS]

    def _job_id(self, number: int) -> int:
        return (number + 1) << 8 | self._partition(number)

    def _lane_id(self, number: int) -> int:
        return QUEUE_ID << 10 | self._partition(number) << 2 | NORMAL
