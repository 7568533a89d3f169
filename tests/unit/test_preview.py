"""The next fire times, with what daylight saving did to each."""

from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from evertick import Schedule
from evertick.domain.limits import PREVIEW_MAX_ROWS
from evertick.domain.schedule.preview import SchedulePreview, as_new_job, preview
from evertick.domain.schedule.spec import Soon
from evertick.domain.stable_hash import jitter_offset

NEW_YORK = "America/New_York"
BEFORE_GAP = datetime(2026, 3, 7, 12, 0, tzinfo=UTC)
BEFORE_OVERLAP = datetime(2026, 10, 31, 12, 0, tzinfo=UTC)


def notes(ahead: SchedulePreview) -> list[tuple[str, ...]]:
    return [row.notes for row in ahead.rows]


def locals_of(ahead: SchedulePreview) -> list[str]:
    return [row.local.isoformat(timespec="minutes") for row in ahead.rows]


def test_rows_are_the_schedules_own_fire_times_in_utc_and_in_its_zone() -> None:
    schedule = Schedule("30 2 * * *", NEW_YORK)
    ahead = preview(schedule, datetime(2026, 6, 1, tzinfo=UTC), 3)
    assert [row.fire_at for row in ahead.rows] == schedule.upcoming(datetime(2026, 6, 1, tzinfo=UTC), 3)
    assert locals_of(ahead)[0] == "2026-06-01T02:30-04:00"
    assert ahead.rows[0].local.tzname() == "EDT"
    assert notes(ahead) == [(), (), ()]
    assert ahead.description == schedule.describe()


def test_a_time_in_the_gap_is_noted_where_it_is_caught_up() -> None:
    ahead = preview(Schedule("30 2 * * *", NEW_YORK), BEFORE_GAP, 2)
    assert locals_of(ahead) == ["2026-03-08T03:00-04:00", "2026-03-09T02:30-04:00"]
    assert notes(ahead) == [("02:30 does not exist on this day: caught up at 03:00",), ()]


def test_several_times_in_the_gap_are_caught_up_at_once() -> None:
    ahead = preview(Schedule("0,30 2 * * *", NEW_YORK), BEFORE_GAP, 1)
    assert notes(ahead) == [("02:00 to 02:30 do not exist on this day: caught up at 03:00",)]


def test_a_shifted_time_is_noted() -> None:
    ahead = preview(Schedule("30 2 * * *", NEW_YORK, "shift"), BEFORE_GAP, 1)
    assert locals_of(ahead) == ["2026-03-08T03:30-04:00"]
    assert notes(ahead) == [("02:30 does not exist on this day: shifted to 03:30",)]


@pytest.mark.parametrize(
    ("text", "dst_gap", "note"),
    [
        ("2026-03-08T02:30", "catch_up", "02:30 does not exist on this day: caught up at 03:00"),
        ("2026-03-08 02:30", "shift", "02:30 does not exist on this day: shifted to 03:30"),
        ("2026-11-01T01:30", "catch_up", "01:30 happens twice: only the first runs"),
    ],
)
def test_an_instant_that_the_clocks_move_is_noted(text: str, dst_gap: str, note: str) -> None:
    assert notes(preview(Schedule(text, NEW_YORK, dst_gap), BEFORE_GAP, 1)) == [(note,)]


def test_an_instant_with_its_own_zone_is_noted_too() -> None:
    ahead = preview(Schedule("CRON_TZ=America/New_York 2026-03-08T02:30"), BEFORE_GAP, 1)
    assert notes(ahead) == [("02:30 does not exist on this day: caught up at 03:00",)]


def test_an_instant_that_comes_twice_runs_once_also_with_both() -> None:
    ahead = preview(Schedule("2026-11-01T01:30", NEW_YORK, dst_overlap="both"), BEFORE_GAP, 2)
    assert notes(ahead) == [("01:30 happens twice: only the first runs",)]


def test_an_instant_with_an_offset_is_not_moved_by_the_clocks() -> None:
    assert notes(preview(Schedule("2026-03-08T02:30-05:00", NEW_YORK), BEFORE_GAP, 1)) == [()]


@pytest.mark.parametrize(("text", "dst_gap"), [("0 2,3 * * *", "catch_up"), ("0 2,3 * * *", "shift")])
def test_a_fire_time_that_stands_for_two_says_so(text: str, dst_gap: str) -> None:
    ahead = preview(Schedule(text, NEW_YORK, dst_gap), BEFORE_GAP, 2)
    assert notes(ahead) == [("02:00 does not exist on this day: this stands for both",), ()]


def test_a_skipped_time_is_lost_and_the_change_is_noted_on_the_next_row() -> None:
    ahead = preview(Schedule("30 2 * * *", NEW_YORK, "skip"), datetime(2026, 3, 7, tzinfo=UTC), 2)
    assert notes(ahead) == [(), ("after the clocks go forward 1 hour",)]
    (lost,) = ahead.lost
    assert lost.at == datetime(2026, 3, 8, 7, 0, tzinfo=UTC)
    assert lost.ticks == 1
    assert lost.first_local == lost.last_local == datetime(2026, 3, 8, 2, 30)  # noqa: DTZ001 - no clock showed it
    assert lost.note == "02:30 does not exist on this day: left out by dst_gap skip"


def test_what_is_lost_before_after_the_last_row_or_outside_the_window_is_not_shown() -> None:
    at_the_jump = datetime(2026, 3, 8, 7, 0, tzinfo=UTC)
    assert preview(Schedule("30 2 * * *", NEW_YORK, "skip"), at_the_jump, 2).lost == ()
    after = datetime(2026, 3, 7, tzinfo=UTC)
    assert preview(Schedule("30 2 * * *", NEW_YORK, "skip"), after, 1).lost == ()
    later = datetime(2026, 3, 9, tzinfo=UTC)
    assert preview(Schedule("30 2 * * *", NEW_YORK, "skip", start_at=later), after, 2).lost == ()


def test_a_window_and_an_until_do_not_hide_what_the_clocks_do() -> None:
    bounded = Schedule("30 2 * * *", NEW_YORK, "skip", end_at=datetime(2026, 12, 1, tzinfo=UTC))
    assert len(preview(bounded, BEFORE_GAP, 1).lost) == 1
    until = Schedule("RRULE:FREQ=DAILY;BYHOUR=2;BYMINUTE=30;UNTIL=20261201T000000Z", NEW_YORK)
    assert notes(preview(until, BEFORE_GAP, 1)) == [("02:30 does not exist on this day: caught up at 03:00",)]


def test_a_correction_of_the_calendar_is_told_apart() -> None:
    ahead = preview(Schedule("0 12 * * *", "Pacific/Apia"), datetime(2011, 12, 29, tzinfo=UTC), 3)
    assert [lost.note for lost in ahead.lost] == [
        "12:00 does not exist on this day: lost to a correction of the clocks"
    ]


@pytest.mark.parametrize(
    ("dst_overlap", "expected"),
    [
        ("first", [("01:30 happens twice: only the first runs",), ("after the clocks go back 1 hour",)]),
        ("second", [("01:30 happens twice: only the second runs",), ()]),
        ("both", [("01:30 happens twice: first of two",), ("01:30 happens twice: second of two",)]),
    ],
)
def test_a_repeated_time_is_noted(dst_overlap: str, expected: list[tuple[str, ...]]) -> None:
    ahead = preview(Schedule("30 1 * * *", NEW_YORK, dst_overlap=dst_overlap), BEFORE_OVERLAP, 2)
    assert notes(ahead) == expected


@pytest.mark.parametrize("text", ["0 */1 * * *", "every 1h"])
def test_elapsed_time_passes_the_repeated_hour_twice(text: str) -> None:
    ahead = preview(Schedule(text, NEW_YORK), datetime(2026, 11, 1, 4, 30, tzinfo=UTC), 2)
    assert notes(ahead) == [("01:00 happens twice: first of two",), ("01:00 happens twice: second of two",)]


@pytest.mark.parametrize("text", ["0 */1 * * *", "every 1h"])
def test_elapsed_time_loses_nothing_in_the_gap(text: str) -> None:
    ahead = preview(Schedule(text, NEW_YORK), datetime(2026, 3, 8, 5, 30, tzinfo=UTC), 2)
    assert locals_of(ahead) == ["2026-03-08T01:00-05:00", "2026-03-08T03:00-04:00"]
    assert notes(ahead) == [(), ("after the clocks go forward 1 hour",)]
    assert ahead.lost == ()


def test_in_utc_there_is_nothing_to_note() -> None:
    assert notes(preview(Schedule("30 2 * * *"), BEFORE_GAP, 2)) == [(), ()]


# Jitter and what depends on the job's id


def test_due_times_are_later_by_the_jobs_jitter() -> None:
    window = timedelta(minutes=5)
    ahead = preview(Schedule("7 9 * * *"), BEFORE_GAP, 2, jitter=window, job_id=4711)
    assert {row.due_at - row.fire_at for row in ahead.rows} == {jitter_offset(4711, window)}
    assert ahead.findings == ()


def test_without_an_id_jitter_and_hash_are_an_example() -> None:
    codes = [
        [finding.code for finding in preview(schedule, BEFORE_GAP, 1, jitter=jitter).findings]
        for schedule, jitter in [
            (Schedule("7 9 * * *"), timedelta(minutes=5)),
            (Schedule("H 9 * * *"), timedelta(0)),
            (Schedule("H 9 * * *", key="job"), timedelta(0)),
        ]
    ]
    assert codes == [["example_times"], ["example_times"], []]


def test_findings_are_those_of_the_years_ahead() -> None:
    (finding,) = preview(Schedule("2026-02-03T13:00:00Z"), BEFORE_GAP, 1).findings
    assert finding.code == "never_fires"


# How many, and from where


def test_a_schedule_that_ends_has_fewer_rows() -> None:
    assert len(preview(Schedule("2026-06-09T13:00:00Z"), BEFORE_GAP, 10).rows) == 1
    assert preview(Schedule("manual"), BEFORE_GAP, 10).rows == ()


@pytest.mark.parametrize("text", ["now", "in 90s", "2026-06-09T13:00:00Z", "R1/2026-06-09T13:00:00Z/PT1H"])
def test_a_job_that_fires_once_is_not_called_too_costly_to_list(text: str) -> None:
    created_at = datetime(2026, 6, 1, tzinfo=UTC)
    ahead = preview(as_new_job(lambda at: Schedule(text, anchor_at=at), created_at), created_at, 10)
    assert (len(ahead.rows), ahead.findings) == (1, ())


def test_no_more_rows_than_a_reader_can_use() -> None:
    assert len(preview(Schedule("* * * * *"), BEFORE_GAP, 10**9).rows) == PREVIEW_MAX_ROWS


def test_now_is_the_instant_asked_about() -> None:
    assert [row.fire_at for row in preview(Schedule("now"), BEFORE_GAP, 3).rows] == [BEFORE_GAP]
    delayed = preview(Schedule("in 90s"), BEFORE_GAP, 3)
    assert [row.fire_at for row in delayed.rows] == [BEFORE_GAP + timedelta(seconds=90)]


def test_a_new_jobs_interval_and_count_begin_at_its_creation() -> None:
    created_at = datetime(2026, 3, 7, 12, 34, 56, tzinfo=UTC)

    def build(text: str, anchor_at: datetime | None) -> Schedule:
        return Schedule(text, anchor_at=anchor_at)

    every = as_new_job(partial(build, "every 1h"), created_at)
    assert every.next(created_at) == created_at + timedelta(hours=1)
    counted = as_new_job(partial(build, "RRULE:FREQ=DAILY;COUNT=3"), created_at)
    assert counted.upcoming(created_at, 9) == [datetime(2026, 3, day, tzinfo=UTC) for day in (8, 9, 10)]
    assert isinstance(as_new_job(partial(build, "now"), created_at).spec, Soon)
