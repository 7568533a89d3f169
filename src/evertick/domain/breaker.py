"""Owns when the deliveries of a tenant to one host stop and begin again: the circuit breaker of a target host.

- closed: every delivery is made. Calls and failures are counted in windows; a high failure ratio opens the circuit.
- open: no delivery is made until the time of the next probe. That time is further away after each probe that failed.
- half-open: one dispatcher makes one delivery, the probe. Its success closes the circuit, its failure opens it again.

A circuit is one row that all dispatchers share. These functions get the row and the database's time, and return the row
as it is to be stored.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum, StrEnum, auto
from typing import Final, NamedTuple, assert_never

from evertick.domain.attempt import AttemptOutcome, Deferred, Failed, HandedOver, NotStarted, Succeeded
from evertick.domain.states import Outcome

WINDOW: Final = timedelta(seconds=30)
"""Calls count in the window in which they end, and in the next one: for 30 to 60 seconds."""
MIN_CALLS: Final = 20
"""With fewer calls in that time the circuit stays closed, whatever becomes of them."""
WATCHED_FAILURES: Final = MIN_CALLS // 2
"""From so many failures on, dispatchers report successes too; until then only a dispatcher that had a failure does."""
WATCH_TIME: Final = timedelta(seconds=3)
"""So long a circuit is watched before it opens. Every dispatcher looks and reports once a second, so the successes of
all are in by then, and one with a broken network opens nothing for the others.
"""
PROBE_MIN: Final = timedelta(seconds=5)
PROBE_MAX: Final = timedelta(minutes=1)
"""Between these grows the time from an opening to the next probe."""
PROBE_TIME: Final = timedelta(seconds=30)
"""A probe without a result by then is given to another dispatcher: its own may be gone, or its delivery hang."""
RETURNS_PER_SECOND: Final = 200
"""So many deferred deliveries to one host come back to be tried again, by each dispatcher."""
HALF_OPEN_WAIT: Final = timedelta(seconds=1)
"""How long a delivery is deferred while a probe is under way."""
LONGEST_DEFERRAL: Final = timedelta(hours=1)

_MAX_DOUBLINGS = 8  # from PROBE_MIN past PROBE_MAX
_TOO_MANY_REQUESTS = 429
_SERVER_ERRORS = 500


class TenantHost(NamedTuple):
    """A host as one tenant calls it, with its port unless that is 443."""

    tenant_id: int
    host: str


class CircuitState(StrEnum):
    """Whether deliveries to a host are made."""

    CLOSED = "closed"  # a probe that succeeded, or an operator
    OPEN = "open"  # failures, or a probe that failed
    HALF_OPEN = "half_open"  # the dispatcher that makes the probe


class Verdict(Enum):
    """What the end of a delivery says about its host."""

    ANSWERED = auto()  # the host works, whatever it thinks of the request
    FAILED = auto()  # the host does not work, or has too much to do
    UNKNOWN = auto()  # the host was not called


@dataclass(frozen=True, slots=True)
class Circuit:
    """The state of one tenant's deliveries to one host, since `changed_at`.

    `calls` and `failures` are of the window that began at `window_at`, those `before` of the window before it.
    `openings` counts how often it opened since it was closed. `probe_at`: when the next probe may be made.
    `watched_at`: since when it has so many failures that others report their successes.
    """

    state: CircuitState
    changed_at: datetime
    window_at: datetime
    calls: int = 0
    failures: int = 0
    calls_before: int = 0
    failures_before: int = 0
    openings: int = 0
    probe_at: datetime | None = None
    watched_at: datetime | None = None
    last_error: str | None = None

    @property
    def recent_calls(self) -> int:
        return self.calls + self.calls_before

    @property
    def recent_failures(self) -> int:
        return self.failures + self.failures_before

    @property
    def failure_ratio(self) -> float:
        return self.recent_failures / self.recent_calls if self.recent_calls else 0.0

    @property
    def is_failing(self) -> bool:
        """Whether it opens, once it was watched for long enough."""
        is_enough = self.recent_calls >= MIN_CALLS and 2 * self.recent_failures >= self.recent_calls
        return self.state is CircuitState.CLOSED and is_enough

    @property
    def watched_until(self) -> datetime | None:
        """Until when dispatchers have to know of it. None: they need not; the year 9999: until it changes."""
        if self.state is not CircuitState.CLOSED:
            return datetime.max.replace(tzinfo=self.changed_at.tzinfo)
        return self.window_at + 2 * WINDOW if self.recent_failures >= WATCHED_FAILURES else None


@dataclass(frozen=True, slots=True)
class Report:
    """What a dispatcher saw of a host since its last report. `probe`: how its probe ended, if it made one."""

    calls: int = 0
    failures: int = 0
    error: str | None = None
    probe: Verdict | None = None


def verdict_of(outcome: AttemptOutcome | None) -> Verdict:
    """A host fails by network errors, timeouts, 5xx and 429. Any other answer is that of a host that works. Of a broker
    its client says whether it works.
    """
    match outcome:
        case Succeeded() | HandedOver() | Failed(is_host_well=True):
            return Verdict.ANSWERED
        case Failed(is_host_well=False):
            return Verdict.FAILED
        case Failed(code=None, result=Outcome.FAILED, retryable=False):
            return Verdict.UNKNOWN  # refused before it was sent
        case Failed(code=code):
            is_failure = code is None or code == _TOO_MANY_REQUESTS or code >= _SERVER_ERRORS
            return Verdict.FAILED if is_failure else Verdict.ANSWERED
        case Deferred() | NotStarted() | None:
            return Verdict.UNKNOWN
        case _:
            assert_never(outcome)


def probe_outcome(host: str, outcome: AttemptOutcome) -> AttemptOutcome:
    """How the attempt ends that was the probe. One that failed counts as no try: the host was known to fail."""
    if isinstance(outcome, Failed) and verdict_of(outcome) is Verdict.FAILED:
        return Deferred(f"deferred: the probe of {host} failed: {outcome.error}")
    return outcome


def new_circuit(now: datetime) -> Circuit:
    return Circuit(CircuitState.CLOSED, changed_at=now, window_at=now)


def apply(circuit: Circuit, report: Report, now: datetime) -> Circuit:
    """The circuit after a report. Late results of a circuit that is not closed say nothing new: only probes count."""
    circuit = circuit if report.error is None else replace(circuit, last_error=report.error)
    match circuit.state:
        case CircuitState.CLOSED:
            return _count(circuit, report, now)
        case CircuitState.OPEN | CircuitState.HALF_OPEN:
            return _after_probe(circuit, report.probe, now)
        case _:
            assert_never(circuit.state)


def claim_probe(circuit: Circuit, now: datetime) -> Circuit | None:
    """The circuit with a probe under way, to be made by whoever stores it. None: no probe may be made now.

    A probe that got no result in its time counts as one that failed.
    """
    if circuit.state is CircuitState.CLOSED or wait_for_probe(circuit, now) > timedelta(0):
        return None
    openings = circuit.openings + (circuit.state is CircuitState.HALF_OPEN)
    return replace(circuit, state=CircuitState.HALF_OPEN, openings=openings, probe_at=now + PROBE_TIME)


def wait_for_probe(circuit: Circuit, now: datetime) -> timedelta:
    """How long until the next probe may be made. A clock that was set back makes it no longer than it ever is."""
    wait = (circuit.probe_at or now) - now
    return timedelta(0) if wait <= timedelta(0) or wait > PROBE_MAX else wait


def probe_interval(openings: int) -> timedelta:
    """The time from an opening to the next probe, by how often it opened since it was closed."""
    return min(PROBE_MIN * (1 << min(openings - 1, _MAX_DOUBLINGS)), PROBE_MAX)


def reset(circuit: Circuit, now: datetime) -> Circuit:
    """Closed, with nothing counted. The last error stays to be read."""
    return replace(new_circuit(now), last_error=circuit.last_error)


def _count(circuit: Circuit, report: Report, now: datetime) -> Circuit:
    turned = _turn(circuit, now)
    counted = replace(turned, calls=turned.calls + report.calls, failures=turned.failures + report.failures)
    if counted.recent_failures < WATCHED_FAILURES:
        return replace(counted, watched_at=None)
    since = min(counted.watched_at or now, now)  # not in the future after the clock was set back
    is_watched = now - since >= WATCH_TIME
    return _open(counted, now) if counted.is_failing and is_watched else replace(counted, watched_at=since)


def _turn(circuit: Circuit, now: datetime) -> Circuit:
    """Begin a new window if the current one is over; what is older than the window before does not count."""
    age = now - circuit.window_at
    if timedelta(0) <= age < WINDOW:
        return circuit
    is_next = WINDOW <= age < 2 * WINDOW
    return replace(
        circuit,
        window_at=circuit.window_at + WINDOW if is_next else now,
        calls_before=circuit.calls if is_next else 0,
        failures_before=circuit.failures if is_next else 0,
        calls=0,
        failures=0,
    )


def _after_probe(circuit: Circuit, probe: Verdict | None, now: datetime) -> Circuit:
    match probe:
        case None:
            return circuit
        case Verdict.ANSWERED:
            return reset(circuit, now)
        case Verdict.FAILED:
            return _open(circuit, now) if circuit.state is CircuitState.HALF_OPEN else circuit
        case Verdict.UNKNOWN:  # the next one may make it at once
            is_ours = circuit.state is CircuitState.HALF_OPEN
            return replace(circuit, state=CircuitState.OPEN, probe_at=now) if is_ours else circuit
        case _:
            assert_never(probe)


def _open(circuit: Circuit, now: datetime) -> Circuit:
    openings = circuit.openings + 1
    changed_at = now if circuit.state is CircuitState.CLOSED else circuit.changed_at
    return replace(
        circuit,
        state=CircuitState.OPEN,
        watched_at=None,
        changed_at=changed_at,
        openings=openings,
        probe_at=now + probe_interval(openings),
    )


class ReturnPace:
    """When the deliveries that a dispatcher defers for one host come back: one after the other, at a limited rate.

    So a host with very many deliveries behind it costs little while its circuit is open, and gets them spread out when
    the circuit is closed again. Times are seconds of any clock that only grows.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = float("-inf")

    def delay(self, wait: timedelta, now: float, per_second: float = RETURNS_PER_SECOND) -> timedelta:
        """How long the next delivery waits: `wait` at least, and behind those deferred before it, at this rate."""
        earliest = now + wait.total_seconds()
        latest = now + LONGEST_DEFERRAL.total_seconds()
        self._last = min(max(earliest, self._last + 1 / per_second), latest)
        return timedelta(seconds=self._last - now)

    def is_over(self, now: float) -> bool:
        """Whether all that was deferred has come back."""
        return self._last <= now
