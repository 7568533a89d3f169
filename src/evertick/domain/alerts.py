"""Alerts: what makes one, by the rules of a job and the conditions of a tenant, and when it opens and closes.

A job's rules are judged by facts of one instant. While a job is paused none of them holds. An alert that opens again
and again opens at most once in `REOPEN_AFTER`, and counts how often.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from evertick.domain.job.faults import Faults, kind_of
from evertick.domain.schedule.instants import SECOND_US, utc_text

MAX_SECONDS = 366 * 86_400
TWICE_USUAL = "2x"
USUAL_OF = 20
"""The usual duration is the median of so many successes, the newest."""
USUAL_LEAST = 5
"""With fewer successes no duration is usual yet."""
LEAST_LONG = 10.0
"""Seconds. Of what usually takes less, no run is long before: an attempt may wait at its worker before it starts."""
NOTE_EVERY = timedelta(hours=1)
"""At most so often a success of a job is noted, apart from its history."""
REOPEN_AFTER = timedelta(minutes=10)
QUIET = timedelta(days=1)
"""An alert that was closed for so long is counted from 1 again."""
NEAR_END = 0.9
"""A quota that is used up to this part is near its end."""
LETTERS_WITHIN = timedelta(minutes=15)
MANY_DUE = 1000
LONG_DUE = timedelta(minutes=1)
"""So many timers of a tenant that are overdue for so long are a large catch-up."""


class Condition(StrEnum):
    """What an alert is about."""

    NO_SUCCESS = "no_success"  # a job has not succeeded within its `must_succeed_within`
    FAILURES = "failures"  # as many runs of a job failed in a row as its `alert_after_failures` says
    LATE = "late"  # a run of a job started late, or should have
    RUNNING_LONG = "running_long"  # a run of a job takes too long
    DEAD_LETTERS = "dead_letters"  # runs of the tenant died lately
    CATCH_UP = "catch_up"  # many timers of the tenant are overdue
    BREAKER_OPEN = "breaker_open"  # deliveries to a host are deferred
    FUSE = "fuse"  # a job was paused because it fired more often than its schedule allows
    QUOTA = "quota"  # a quota of the tenant is nearly used up


OF_JOBS = (Condition.NO_SUCCESS, Condition.FAILURES, Condition.LATE, Condition.RUNNING_LONG)
OF_TENANTS = (Condition.DEAD_LETTERS, Condition.CATCH_UP, Condition.BREAKER_OPEN, Condition.QUOTA)


class CloseReason(StrEnum):
    """Why an alert was closed."""

    RECOVERED = "recovered"  # its condition is gone
    PAUSED = "paused"  # its job was paused
    DELETED = "deleted"  # its job was deleted
    RULE_REMOVED = "rule_removed"  # nobody wants it any more


def parse_seconds(value: object) -> float | None:
    """Seconds, as a number or as text such as `26h`; None if it is neither."""
    if isinstance(value, str):
        from evertick.domain.schedule.interval import parse_words  # noqa: PLC0415 - readers of answers do without

        length_us = parse_words(value)
        return None if length_us is None else length_us / SECOND_US
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def check_within(value: object, at: str, faults: Faults) -> None:
    _check_seconds(value, at, faults, "26h")


def check_running(value: object, at: str, faults: Faults) -> None:
    if value != TWICE_USUAL:
        _check_seconds(value, at, faults, TWICE_USUAL)


def _check_seconds(value: object, at: str, faults: Faults, example: str) -> None:
    seconds = parse_seconds(value)
    if seconds is None:
        given = repr(value) if isinstance(value, str) else kind_of(value)
        faults.add(at, f"must be a number of seconds, or text such as {example!r}, not {given}")
    elif not 1 <= seconds <= MAX_SECONDS:
        faults.add(at, f"must be from 1 to {MAX_SECONDS} seconds")


class JobRules(NamedTuple):
    """The rules of a job, in seconds; None where it has none."""

    within: float | None = None
    failures: int | None = None
    late: float | None = None
    running: float | None = None
    is_running_twice: bool = False  # as usual, in place of `running`

    @classmethod
    def of(cls, within: object, failures: int | None, late: float | None, running: object) -> "JobRules":
        is_twice = running == TWICE_USUAL
        return cls(parse_seconds(within), failures, late, None if is_twice else parse_seconds(running), is_twice)

    @property
    def conditions(self) -> frozenset[Condition]:
        has = (self.within is not None, self.failures is not None, self.late is not None)
        values = (*has, self.running is not None or self.is_running_twice)
        return frozenset(condition for condition, is_set in zip(OF_JOBS, values, strict=True) if is_set)


class JobFacts(NamedTuple):
    """What is known of an active job at an instant.

    `since_at`: when it was created, or resumed. `waits_since_at`: when what has not started was due. `started_late`:
    how long after its due time the latest run started.
    """

    now_at: datetime
    since_at: datetime
    is_finished: bool = False  # its last tick has passed
    success_at: datetime | None = None
    failures: int = 0
    waits_since_at: datetime | None = None
    started_late: timedelta | None = None
    running_since_at: datetime | None = None
    durations: Sequence[float] = ()  # of its newest successes, in seconds


def breaches(rules: JobRules, facts: JobFacts) -> dict[Condition, str]:
    """Which of its rules a job breaks, and in what way."""
    found: dict[Condition, str | None] = {
        Condition.NO_SUCCESS: _no_success(rules, facts),
        Condition.FAILURES: _failures(rules, facts),
        Condition.LATE: _late(rules, facts),
        Condition.RUNNING_LONG: _running_long(rules, facts),
    }
    return {condition: detail for condition, detail in found.items() if detail is not None}


def _no_success(rules: JobRules, facts: JobFacts) -> str | None:
    if rules.within is None:
        return None
    succeeded = facts.success_at is not None and facts.success_at >= facts.since_at
    if succeeded and facts.is_finished:
        return None  # nothing is to come
    last_at = facts.success_at if succeeded and facts.success_at is not None else facts.since_at
    if facts.now_at <= last_at + timedelta(seconds=rules.within):
        return None
    since = f"its last success at {utc_text(last_at)}" if succeeded else utc_text(last_at)
    return f"no run has succeeded since {since}"


def is_to_note(rules: JobRules, success_at: datetime, noted_at: datetime | None) -> bool:
    """Whether a success is to be noted: history may be kept for less than `within`, and it is searched only so far."""
    if rules.within is None:
        return False
    return noted_at is None or success_at - noted_at >= max(timedelta(seconds=rules.within / 10), NOTE_EVERY)


def _failures(rules: JobRules, facts: JobFacts) -> str | None:
    if rules.failures is None or facts.failures < rules.failures:
        return None
    if facts.failures == 1:
        return "the latest run has failed"
    return f"{facts.failures} runs in a row have failed"


def _late(rules: JobRules, facts: JobFacts) -> str | None:
    if rules.late is None:
        return None
    allowed = timedelta(seconds=rules.late)
    if facts.waits_since_at is not None and facts.now_at - facts.waits_since_at > allowed:
        return f"a run that was due at {utc_text(facts.waits_since_at)} has not started"
    if facts.started_late is not None and facts.started_late > allowed:
        return f"the latest run started {facts.started_late.total_seconds():.0f} s late"
    return None


def _running_long(rules: JobRules, facts: JobFacts) -> str | None:
    if facts.running_since_at is None:
        return None
    allowed = rules.running
    if rules.is_running_twice and (usual := usual_duration(facts.durations)) is not None:
        allowed = max(2 * usual, LEAST_LONG)
    if allowed is None or facts.now_at - facts.running_since_at <= timedelta(seconds=allowed):
        return None
    return f"a run has been running since {utc_text(facts.running_since_at)}, more than {allowed:.0f} s"


def usual_duration(durations: Sequence[float]) -> float | None:
    """The median of the newest successes, in seconds; None while there are too few."""
    from statistics import median  # noqa: PLC0415 - as above

    newest = durations[:USUAL_OF]
    return median(newest) if len(newest) >= USUAL_LEAST else None


class AlertKey(NamedTuple):
    """A tenant has one alert of a condition for each subject: a job's id, a host, a quota, or nothing."""

    tenant_id: int
    condition: str
    subject: str


class AlertState(NamedTuple):
    """An alert that was opened once at least."""

    is_open: bool
    opened_at: datetime
    closed_at: datetime | None
    openings: int


def openings_after(state: AlertState | None, now_at: datetime) -> int | None:
    """How often an alert whose condition holds has been opened, if it opens now. None: it does not."""
    if state is None:
        return 1
    if state.is_open or state.opened_at <= now_at < state.opened_at + REOPEN_AFTER:
        return None
    is_quiet = state.closed_at is not None and now_at >= state.closed_at + QUIET
    return 1 if is_quiet else state.openings + 1


class TenantFacts(NamedTuple):
    """What is known of a tenant: dead letters of the last minutes, overdue timers, and what it uses of its quotas."""

    letters: int
    due: int
    hosts: Mapping[str, str | None]  # whose circuits are not closed, with their last errors
    quotas: Mapping[str, tuple[int, int]]  # used, and allowed


def tenant_breaches(wanted: Iterable[str], facts: TenantFacts) -> dict[tuple[Condition, str], str]:
    """Which of the conditions that a tenant wants to know of hold, by subject."""
    found: dict[tuple[Condition, str], str] = {}
    if facts.letters:
        minutes = LETTERS_WITHIN // timedelta(minutes=1)
        died = "run died" if facts.letters == 1 else "runs died"
        found[Condition.DEAD_LETTERS, ""] = f"{facts.letters} {died} in the last {minutes} minutes"
    if facts.due >= MANY_DUE:
        found[Condition.CATCH_UP, ""] = f"{MANY_DUE} timers or more are overdue for more than a minute"
    for host, error in facts.hosts.items():
        found[Condition.BREAKER_OPEN, host] = f"deliveries to {host} are deferred: {error or 'it fails'}"
    for quota, (used, allowed) in facts.quotas.items():
        if allowed and used >= NEAR_END * allowed:
            found[Condition.QUOTA, quota] = f"{NEAR_END:.0%} or more of {allowed} are used"
    names = set(wanted)
    return {key: detail for key, detail in found.items() if key[0] in names}
