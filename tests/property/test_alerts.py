"""Alert rules, judged one by one, and how often an alert opens."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from evertick.domain.alerts import (
    LEAST_LONG,
    MANY_DUE,
    NOTE_EVERY,
    QUIET,
    REOPEN_AFTER,
    USUAL_LEAST,
    AlertState,
    Condition,
    JobFacts,
    JobRules,
    TenantFacts,
    breaches,
    is_to_note,
    openings_after,
    parse_seconds,
    tenant_breaches,
    usual_duration,
)

AT = datetime(2026, 6, 9, 12, tzinfo=UTC)
SECONDS = st.integers(0, 100)
instants = st.builds(lambda seconds: AT - timedelta(seconds=seconds), SECONDS)
rules = st.builds(
    JobRules,
    within=st.none() | st.integers(1, 100),
    failures=st.none() | st.integers(1, 5),
    late=st.none() | SECONDS,
    running=st.none() | st.integers(1, 100),
    is_running_twice=st.just(False),
)
facts = st.builds(
    JobFacts,
    now_at=st.just(AT),
    since_at=instants,
    is_finished=st.booleans(),
    success_at=st.none() | instants,
    failures=st.integers(0, 6),
    waits_since_at=st.none() | instants,
    started_late=st.none() | st.builds(lambda seconds: timedelta(seconds=seconds), SECONDS),
    running_since_at=st.none() | instants,
    durations=st.just(()),
)


def seconds_since(at: datetime) -> float:
    return (AT - at).total_seconds()


@given(rules, facts)
def test_a_rule_is_broken_when_its_bound_is_passed_and_only_if_there_is_one(rules: JobRules, facts: JobFacts) -> None:
    found = set(breaches(rules, facts))
    assert found <= rules.conditions
    own_success = facts.success_at is not None and facts.success_at >= facts.since_at
    last_at = max(facts.since_at, facts.success_at) if facts.success_at else facts.since_at
    is_overdue = rules.within is not None and seconds_since(last_at) > rules.within
    assert (Condition.NO_SUCCESS in found) == (is_overdue and not (facts.is_finished and own_success))
    assert (Condition.FAILURES in found) == (rules.failures is not None and facts.failures >= rules.failures)
    lateness = [0 if facts.waits_since_at is None else seconds_since(facts.waits_since_at)]
    lateness += [0 if facts.started_late is None else facts.started_late.total_seconds()]
    assert (Condition.LATE in found) == (rules.late is not None and max(lateness) > rules.late)
    runs_for = 0 if facts.running_since_at is None else seconds_since(facts.running_since_at)
    assert (Condition.RUNNING_LONG in found) == (rules.running is not None and runs_for > rules.running)


@given(st.lists(st.floats(0.1, 50), max_size=30), SECONDS)
def test_twice_the_usual_duration_follows_the_newest_successes(durations: list[float], runs_for: int) -> None:
    usual = usual_duration(durations)
    assert (usual is None) == (len(durations) < USUAL_LEAST)
    assert usual_duration([*durations[:20], *[9e9] * 50][: max(len(durations), 20)]) == usual or len(durations) < 20
    running = JobFacts(AT, AT, running_since_at=AT - timedelta(seconds=runs_for), durations=durations)
    is_long = bool(breaches(JobRules(is_running_twice=True), running))
    assert is_long == (
        usual is not None and timedelta(seconds=runs_for) > timedelta(seconds=max(2 * usual, LEAST_LONG))
    )


def test_a_success_is_noted_at_first_and_then_not_too_often() -> None:
    daily = JobRules(within=86_400)
    assert is_to_note(daily, AT, None)
    assert not is_to_note(daily, AT, AT - timedelta(hours=2))
    assert is_to_note(daily, AT, AT - timedelta(hours=2.4))
    assert not is_to_note(JobRules(within=1), AT, AT - NOTE_EVERY / 2)
    assert not is_to_note(JobRules(failures=1), AT, None)


@given(st.lists(st.tuples(st.integers(1, 3000), st.booleans()), max_size=60))
def test_an_alert_opens_at_most_once_in_ten_minutes_and_counts_until_it_was_quiet_for_a_day(
    changes: list[tuple[int, bool]],
) -> None:
    state: AlertState | None = None
    now_at = AT
    opened: list[datetime] = []
    for seconds, holds in changes:
        now_at += timedelta(seconds=seconds)
        openings = openings_after(state, now_at) if holds else None
        if openings is not None:
            assert openings == len(opened) + 1
            opened.append(now_at)
            state = AlertState(True, now_at, None, openings)
        elif state is not None and not holds and state.is_open:
            state = state._replace(is_open=False, closed_at=now_at)
    assert all(later - earlier >= REOPEN_AFTER for earlier, later in pairwise(opened))
    if state is not None:
        assert openings_after(state._replace(is_open=False, closed_at=now_at), now_at + QUIET) == 1


def test_a_clock_that_was_set_back_does_not_keep_an_alert_closed() -> None:
    state = AlertState(False, AT, AT, 1)
    assert openings_after(state, AT - timedelta(hours=1)) == 2


@pytest.mark.parametrize(
    ("value", "seconds"), [("26h", 93_600), (90, 90), ("1h30m", 5400), (0.5, 0.5), ("soon", None), (True, None)]
)
def test_lengths_are_numbers_or_words(value: object, seconds: float | None) -> None:
    assert parse_seconds(value) == seconds


@given(
    st.sets(st.sampled_from(Condition)),
    st.integers(0, 2),
    st.integers(MANY_DUE - 1, MANY_DUE),
    st.integers(0, 100),
    st.integers(0, 100),
)
def test_a_tenant_is_told_of_what_it_asked_for(
    wanted: set[Condition], letters: int, due: int, used: int, allowed: int
) -> None:
    known = TenantFacts(letters, due, {"a.example": None}, {"jobs": (used, allowed)})
    found = {condition for condition, _ in tenant_breaches(wanted, known)}
    holds = {
        Condition.DEAD_LETTERS: letters > 0,
        Condition.CATCH_UP: due >= MANY_DUE,
        Condition.BREAKER_OPEN: True,
        Condition.QUOTA: allowed > 0 and used >= 0.9 * allowed,
    }
    assert found == {condition for condition, is_true in holds.items() if is_true} & wanted
