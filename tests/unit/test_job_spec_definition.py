"""From a specification to its rule and first tick, for new jobs and for edited ones."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from evertick.contract.job import JobSpec, timing_of
from evertick.contract.job_reading import read_spec
from evertick.domain.errors import InvalidFields
from evertick.domain.ids import Prefix, format_id
from evertick.domain.job.definition import Definition, define
from evertick.domain.policies import ConcurrentPolicy, MissedWindow
from evertick.domain.rule import from_canonical
from evertick.domain.schedule.budget import at_most
from evertick.domain.schedule.schedule import Schedule
from evertick.domain.schedule.text import is_costly
from evertick.domain.stable_hash import jitter_offset

CREATED = datetime(2026, 6, 1, 12, 0, 7, 250_000, tzinfo=UTC)
JOB = 0x1234
SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def job(schedule: str, **fields: Any) -> JobSpec:
    return read_spec({"schedule": schedule, "target": {"type": "worker", "handler": "h"}, **fields})


def defined(
    schedule: str, *, job_id: int = JOB, created_at: datetime = CREATED, now: datetime | None = None, **fields: Any
) -> Definition:
    return define(timing_of(job(schedule, **fields)), job_id, created_at, now or created_at)


def faults(schedule: str, **options: Any) -> dict[str, str]:
    with pytest.raises(InvalidFields) as refused:
        defined(schedule, **options)
    return dict(refused.value.faults)


def test_a_recurring_job_first_fires_strictly_after_now() -> None:
    assert defined("*/5 * * * *").first_fire_at == datetime(2026, 6, 1, 12, 5, tzinfo=UTC)
    on_the_tick = datetime(2026, 6, 1, 12, 5, tzinfo=UTC)
    assert defined("*/5 * * * *", now=on_the_tick).first_fire_at == on_the_tick + 5 * MINUTE


def test_zone_and_window_decide_the_first_tick() -> None:
    new_york = defined("0 9 * * *", timezone="America/New_York")
    assert new_york.first_fire_at == datetime(2026, 6, 1, 13, tzinfo=UTC)
    later = defined("0 9 * * *", start_at="2027-01-01T10:00:00Z")
    assert later.first_fire_at == datetime(2027, 1, 2, 9, tzinfo=UTC)


def test_a_manual_job_has_no_tick() -> None:
    manual = defined("manual", jitter_seconds=60)
    assert (manual.first_fire_at, manual.first_due_at) == (None, None)


def test_a_delay_counts_from_the_creation_to_the_microsecond() -> None:
    assert defined("now").first_fire_at == CREATED
    assert defined("in 90s").first_fire_at == CREATED + 90 * SECOND
    assert defined("in 90s", created_at=CREATED + SECOND).first_fire_at == CREATED + 91 * SECOND
    assert defined("in 90s", now=CREATED + MINUTE).first_fire_at == CREATED + 90 * SECOND


def test_a_delay_waits_for_its_window() -> None:
    opening = CREATED + DAY
    assert defined("in 90s", start_at=opening.isoformat()).first_fire_at == opening
    closing = (CREATED + MINUTE).isoformat()
    assert faults("in 90s", end_at=closing)["/schedule"].startswith("never fires between start_at and end_at")
    assert defined("in 60s", end_at=closing).first_fire_at == CREATED + MINUTE


@pytest.mark.parametrize("text", ["now", "2026-06-01T12:00:07.250Z"])
def test_a_one_off_keeps_its_instant_while_it_is_within_its_grace(text: str) -> None:
    assert defined(text, now=CREATED + HOUR).first_fire_at == CREATED
    late = faults(text, now=CREATED + HOUR + timedelta(microseconds=1))["/schedule"]
    assert late.endswith(" is past, by more than its grace of 1 hour")
    late = faults(text, now=CREATED + MINUTE, misfire_grace_seconds=30)["/schedule"]
    assert late.endswith(" is past, by more than its grace of 30 seconds")


@pytest.mark.parametrize("text", ["now", "2026-06-01T12:00:07.250Z"])
def test_a_one_off_without_grace_is_not_past_for_the_moment_that_creating_it_takes(text: str) -> None:
    assert defined(text, now=CREATED + SECOND / 2, misfire_grace_seconds=0).first_fire_at == CREATED


def test_jitter_moves_the_due_time_by_the_jobs_own_offset() -> None:
    found = defined("@hourly", jitter_seconds=600)
    assert found.first_fire_at == datetime(2026, 6, 1, 13, tzinfo=UTC)
    assert found.first_due_at == found.first_fire_at + jitter_offset(JOB, 10 * MINUTE)
    assert found.first_due_at != defined("@hourly", jitter_seconds=600, job_id=JOB + 1).first_due_at
    assert defined("@hourly").first_due_at == found.first_fire_at


def test_an_edited_interval_keeps_its_phase() -> None:
    edited = defined("every 5m", now=CREATED + 12 * MINUTE)
    assert edited.first_fire_at == CREATED.replace(microsecond=0) + 15 * MINUTE
    assert edited.digest == defined("every 5m").digest


def test_intervals_of_jobs_made_in_other_seconds_have_other_phases() -> None:
    assert defined("every 5m").digest != defined("every 5m", created_at=CREATED + SECOND).digest
    opening = "2026-06-02T00:00:00Z"
    one, other = (defined("every 5m", created_at=CREATED + n * SECOND, start_at=opening) for n in (0, 1))
    assert one == other


def test_h_spreads_jobs_by_their_public_id() -> None:
    for job_id in (1, 2, 3):
        seeded = Schedule("H H * * *", key=format_id(Prefix.JOB, job_id))
        assert defined("H H * * *", job_id=job_id).first_fire_at == seeded.next(CREATED)
    assert len({defined("H H * * *", job_id=job_id).digest for job_id in range(5)}) == 5


def test_a_date_that_h_makes_possible_for_some_jobs_only_is_refused_for_the_others_only() -> None:
    verdicts = set()
    for job_id in range(40):
        try:
            verdicts.add(defined("0 0 30 H(2-3) *", job_id=job_id).first_fire_at is not None)
        except InvalidFields:
            verdicts.add(False)
    assert verdicts == {True, False}


def test_the_rule_carries_every_policy() -> None:
    found = defined(
        "*/5 * * * *",
        jitter_seconds=1.5,
        missed_window="RUN_ALL",
        misfire_grace_seconds=7,
        max_missed=9,
        concurrent_policy="ALLOW",
        max_concurrent=4,
    )
    rule = found.rule
    assert (rule.jitter_us, rule.grace_us, rule.max_missed, rule.max_concurrent) == (1_500_000, 7_000_000, 9, 4)
    assert (rule.missed_window, rule.concurrent_policy) == (MissedWindow.RUN_ALL, ConcurrentPolicy.ALLOW)
    assert from_canonical(found.canonical) == rule
    assert found.digest == rule.digest()


def test_a_grace_that_nobody_chose_is_the_interval_or_an_hour() -> None:
    assert defined("*/5 * * * *").rule.grace_us == 300_000_000
    assert defined("@daily").rule.grace_us == 3_600_000_000


def test_jobs_that_fire_alike_share_one_rule() -> None:
    assert defined("*/5 * * * *").rule is defined("*/5 * * * *", job_id=7, created_at=CREATED + DAY).rule
    assert defined("in 3d").digest == defined("in 2 hours", created_at=CREATED + DAY).digest
    assert defined("@daily").digest == defined("0 0 * * *").digest


def test_faults_point_at_the_field_and_come_together() -> None:
    assert set(faults("61 * * * *")) == {"/schedule"}
    assert set(faults("@daily", timezone="Mars/Base")) == {"/timezone"}
    assert set(faults("61 * * * *", timezone="Mars/Base")) == {"/schedule", "/timezone"}
    assert set(faults("CRON_TZ=Mars/Base 61 * * * *")) == {"/timezone"}
    assert set(faults("H 61 * * *")) == {"/schedule"}
    assert faults("in three days")["/schedule"].endswith("at most 100 years")


def test_what_can_never_fire_is_refused() -> None:
    assert "never fires" in faults("0 0 30 2 *")["/schedule"]
    assert "never fires again" in faults("R1/2020-01-01T00:00:00Z/PT1H")["/schedule"]
    assert (
        "outside of the years" in faults("in 90s", created_at=datetime(9990, 12, 31, 23, 59, tzinfo=UTC))["/schedule"]
    )


@pytest.mark.parametrize("text", ["every 30s", "*/30 * * * * *", "RRULE:FREQ=SECONDLY;INTERVAL=30"])
def test_the_tenants_shortest_interval_holds_for_each_tenant(text: str) -> None:
    assert define(timing_of(job(text)), JOB, CREATED, CREATED).first_fire_at
    with pytest.raises(InvalidFields, match="/schedule: fires every 0:00:30, more often than the allowed 0:01:00"):
        define(timing_of(job(text)), JOB, CREATED, CREATED, shortest=MINUTE)
    assert define(timing_of(job(text)), JOB, CREATED, CREATED, shortest=30 * SECOND).first_fire_at


def test_a_count_that_would_get_too_costly_in_the_life_of_the_job_is_refused() -> None:
    text = "DTSTART:{}0101T000000\nRRULE:FREQ=WEEKLY;INTERVAL=2;BYDAY=MO;COUNT=100000"
    assert defined(text.format(2020)).first_fire_at
    assert "too long to compute" in faults(text.format(1930))["/schedule"]


CHEAP_STEPS = 100
"""An edit takes so many inside its transaction: a fraction of a millisecond."""


@pytest.mark.parametrize(
    "text", ["now", "in 5m", "2026-06-09T13:00:00Z", "every 5m", "@every 1h", "manual", "TZ=UTC now"]
)
def test_one_offs_and_fixed_intervals_are_cheap(text: str) -> None:
    assert not is_costly(text)
    with at_most(CHEAP_STEPS):
        defined(text)


@pytest.mark.parametrize(
    "text",
    ["0 9 * * 1", "@daily", "TZ=Europe/Rome 0 9 * * *", "RRULE:FREQ=DAILY", "R/2026-01-31T02:30:00/P1M", "", "?"],
)
def test_all_else_may_be_costly(text: str) -> None:
    assert is_costly(text)
