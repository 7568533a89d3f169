from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from evertick.domain.cluster_identity import EXPLANATIONS, RECENT, UPGRADE, Place, Suspicion, judge

NOW = datetime(2026, 6, 9, 12, tzinfo=UTC)
HOME = Place(system_identifier=7, timeline=1, database_oid=16384, table_oid=17000)
PROMOTED = replace(HOME, timeline=2)
UPGRADED = replace(HOME, system_identifier=8)
BLIND = Place(None, None, HOME.database_oid, HOME.table_oid)
AGES = st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=30))
LONG = RECENT + timedelta(seconds=1)


def judged(
    here: Place,
    active: timedelta,
    remembered: timedelta | None = None,
    suspicion: Suspicion | None = None,
    confirmed: Place = HOME,
) -> Suspicion | None:
    """With the ages of the newest trace of a scheduler and of what this one remembers."""
    return judge(
        here,
        confirmed,
        active_at=NOW - active,
        now_at=NOW,
        remembered_at=None if remembered is None else NOW - remembered,
        suspicion=suspicion,
    )


@given(AGES)
def test_a_server_that_is_started_again_goes_on_however_long_it_was_down(age: timedelta) -> None:
    assert judged(HOME, age) is None


@pytest.mark.parametrize(("here", "limit"), [(PROMOTED, RECENT), (UPGRADED, UPGRADE)])
def test_a_fail_over_or_an_upgrade_goes_on_while_the_state_is_recent(here: Place, limit: timedelta) -> None:
    assert judged(here, limit) is None
    assert judged(here, limit + timedelta(seconds=1)) is Suspicion.RECOVERED


@given(AGES, st.timedeltas(-RECENT, RECENT))
def test_a_scheduler_that_was_among_the_last_at_work_goes_on_after_a_fail_over(age: timedelta, off: timedelta) -> None:
    assert judged(PROMOTED, age, age + off) is None
    assert judged(PROMOTED, age, age + off, Suspicion.RECOVERED) is None


@given(AGES)
def test_a_state_that_is_older_than_what_a_scheduler_remembers_was_restored(age: timedelta) -> None:
    assert judged(HOME, age + LONG, age) is Suspicion.BEHIND
    assert judged(PROMOTED, age + LONG, age) is Suspicion.BEHIND


def test_what_a_scheduler_remembers_of_long_before_proves_nothing() -> None:
    assert judged(PROMOTED, LONG, 3 * LONG) is Suspicion.RECOVERED
    assert judged(HOME, LONG, 3 * LONG) is None


@given(AGES, st.none() | AGES)
def test_a_database_with_other_tables_is_a_copy_whatever_else(age: timedelta, remembered: timedelta | None) -> None:
    for here in (replace(HOME, database_oid=1), replace(HOME, table_oid=1)):
        assert judged(here, age, remembered) is Suspicion.COPIED


@given(st.sampled_from([HOME, PROMOTED, UPGRADED]), AGES, st.none() | AGES)
def test_only_the_suspicion_of_one_that_started_later_ends_by_itself(
    here: Place, age: timedelta, remembered: timedelta | None
) -> None:
    for suspicion in (Suspicion.COPIED, Suspicion.BEHIND):
        assert judged(here, age, remembered, suspicion) is suspicion
    assert judged(here, age, None, Suspicion.RECOVERED) is Suspicion.RECOVERED


@given(AGES)
def test_what_a_server_does_not_tell_is_not_held_against_it(age: timedelta) -> None:
    assert judged(BLIND, age) is None
    assert judged(PROMOTED, age, confirmed=BLIND) is None


def test_a_database_in_which_nothing_ever_worked_needs_no_confirmation() -> None:
    assert judge(PROMOTED, HOME, active_at=None, now_at=NOW, remembered_at=None) is None


def test_each_suspicion_is_explained() -> None:
    assert set(EXPLANATIONS) == set(Suspicion)
