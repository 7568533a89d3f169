"""Observes how long the legs of attempts take, for the metrics: in bulk, a few times each second.

An attempt is observed when it has ended; one that runs for long after `EARLY_SECONDS`, so that a lag does not stay
hidden for as long as its handler runs. One that its handler did not begin is not observed: it comes again.

All are observed up to a thousand each second. Of more, a random sample is, each for as many as it stands for: observing
one takes two microseconds, where running one takes 15.
"""

import random
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import NamedTuple

from evertick.domain.attempt import Attempt
from evertick.executor.running import Running
from evertick.metrics.catalog import LAG, LEG, LEGS
from evertick.metrics.instruments import Series
from evertick.metrics.queue_labels import queue_labels

EARLY_SECONDS = 5.0
FLUSH = 1024
"""So many ended attempts are observed at once, at the latest."""
EXACT = 256
"""Up to so many at once, a sweep's worth, are all observed. Of more, `SAMPLE` are."""
SAMPLE = 64
MAX_LANES = 10_000
_US = 1_000_000


class _QueueSeries(NamedTuple):
    lag: Series
    fired: Series
    leased: Series
    started: Series
    finished: Series

    def observe_lag(self, due: float, fired: float, leased: float, started: float, times: int = 1) -> None:
        self.lag.observe(max(0.0, started - due), times)
        self.fired.observe(max(0.0, fired - due), times)
        self.leased.observe(max(0.0, leased - fired), times)


class AttemptTimes:
    """Of one executor. `queue_name` tells where an attempt came from."""

    def __init__(self, role: str, queue_name: Callable[[Attempt], str]) -> None:
        self._role = role
        self._queue_name = queue_name
        self._ended: list[tuple[Running, datetime]] = []
        self._by_lane: dict[int, _QueueSeries] = {}

    def add(self, running: Running, finished_at: datetime) -> None:
        """An attempt has ended, with an outcome."""
        self._ended.append((running, finished_at))
        if len(self._ended) >= FLUSH:
            self.observe()

    def add_all(self, running: Iterable[Running], finished_at: datetime) -> None:
        """Attempts have ended together, with an outcome."""
        self._ended += [(each, finished_at) for each in running]
        if len(self._ended) >= FLUSH:
            self.observe()

    def observe_started(self, running: Iterable[Running], now: float) -> None:
        """Observe the starts of those that have been running for long."""
        for each in running:
            if not each.is_observed and now - each.started > EARLY_SECONDS:
                each.is_observed = True
                lane_id, seq = each.attempt.token
                self._observe_start(self._series(lane_id, each.attempt), each, seq, each.started_at.timestamp())

    def observe(self) -> None:
        """Observe what has ended."""
        ended, self._ended = self._ended, []
        stride = 1 if len(ended) <= EXACT else len(ended) // SAMPLE
        started_at = finished_at = None
        started = finished = 0.0
        # From a random place on: at a fixed one, some attempts of a regular pattern would never be seen.
        for running, at in ended if stride == 1 else ended[random.randrange(stride) :: stride]:  # noqa: S311 - no secret
            if running.started_at is not started_at:  # attempts of one moment share it
                started_at = running.started_at
                started = started_at.timestamp()
            if at is not finished_at:
                finished_at = at
                finished = at.timestamp()
            lane_id, seq = running.attempt.token
            series = self._by_lane.get(lane_id) or self._series(lane_id, running.attempt)
            series.finished.observe(max(0.0, finished - started), stride)
            if not running.is_observed:
                self._observe_start(series, running, seq, started, stride)

    @staticmethod
    def _observe_start(series: _QueueSeries, running: Running, seq: int, started: float, times: int = 1) -> None:
        leased_at, due_at = running.leased_at, running.attempt.due_at
        leased = started if leased_at is None else leased_at.timestamp()
        series.started.observe(max(0.0, started - leased), times)
        if due_at is not None:
            series.observe_lag(due_at.timestamp(), seq / _US, leased, started, times)

    def _series(self, lane_id: int, attempt: Attempt) -> _QueueSeries:
        series = self._by_lane.get(lane_id)
        if series is None:
            if len(self._by_lane) >= MAX_LANES:
                self._by_lane.clear()
            series = self._by_lane[lane_id] = _queue_series(self._role, self._queue_name(attempt))
        return series


def observe_pulled(queue: str, pulled: Iterable[tuple[datetime, int]], leased_at: datetime) -> None:
    """Observe attempts that a pull worker was given, by due time and seq. For the API they start at that moment."""
    series = _queue_series("api", queue)
    leased = leased_at.timestamp()
    for due_at, seq in pulled:
        series.observe_lag(due_at.timestamp(), seq / _US, leased, leased)


def _queue_series(role: str, queue: str) -> _QueueSeries:
    """The series of a queue, or of all queues that have none of their own."""
    label = queue_labels.of(queue)
    return _QueueSeries(LAG.of(role, label), *(LEG.of(leg, role, label) for leg in LEGS))
