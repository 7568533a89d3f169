"""What a job did, as ticks, bars and a calendar."""

from datetime import UTC, datetime, timedelta

from evertick.contract.runs import Gap, Run
from evertick.dashboard.jobs.activity import calendar, durations, months, ticks
from evertick.usecases.job_history import Day

NOW = datetime(2026, 6, 10, tzinfo=UTC)  # a Wednesday


def run(status: str, took_ms: int | None = None, error: str | None = None) -> Run:
    return Run(
        run_id="run_1",
        job_id="job_1",
        scheduled_at=NOW,
        started_at=None,
        finished_at=None,
        duration_ms=took_ms,
        status=status,
        attempt=1,
        reason="tick",
        spec_version=1,
        worker_id=None,
        result_code=None,
        error=error,
    )


def test_marks_differ_by_what_became_of_a_run_and_say_why() -> None:
    gap = Gap(job_id="job_1", status="missed", reason="missed", scheduled_at=NOW, until=NOW, count=3, spec_version=1)
    marks = ticks([run("success", 20), run("dead", 5, "boom"), run("running"), gap])
    assert [mark.name for mark in marks] == ["ok", "bad", "run", "missed"]
    assert marks[0].at > marks[1].at > marks[2].at
    assert marks[1].title.endswith("dead (tick), 5 ms: boom")
    assert "3 ticks missed" in marks[3].title


def test_percentiles_are_durations_that_occurred() -> None:
    shown = durations([run("success", took) for took in range(1, 101)])
    assert shown.percentiles == [("p50", 50), ("p95", 95), ("p99", 99)]
    assert durations([run("success", 7)]).percentiles == [("p50", 7), ("p95", 7), ("p99", 7)]
    assert durations([run("pending")]).percentiles == []


def test_a_calendar_has_a_row_for_each_weekday_and_marks_failures_and_gaps() -> None:
    first = NOW - timedelta(days=2)  # a Monday
    days = [
        Day(first, 10, 9, 1, is_counted=True),
        Day(first + timedelta(days=1), 5, 5, 0, ("paused",), is_counted=True),
        Day(NOW, is_counted=False),
    ]
    rows = dict(calendar(days))
    (monday,), (tuesday,), (wednesday,) = rows["Mon"], rows["Tue"], rows["Wed"]
    assert monday is not None
    assert tuesday is not None
    assert wednesday is not None
    assert (monday.mark, tuesday.mark, wednesday.mark) == ("bad", "gap", "")
    assert monday.level > tuesday.level > wednesday.level == 0
    assert "1 failed" in monday.title
    assert "the job was paused" in tuesday.title


def test_columns_of_a_calendar_have_the_names_of_the_months_that_begin_in_them() -> None:
    first = datetime(2026, 3, 12, tzinfo=UTC)  # a Thursday: three columns before the week of 1 April
    days = [Day(first + timedelta(days=place)) for place in range(91)]
    names = months(days)
    assert len(names) == max(len(cells) for _, cells in calendar(days)) == 14
    assert {place: name for place, name in enumerate(names) if name} == {0: "Mar", 3: "Apr", 7: "May", 12: "Jun"}
    assert months(days[14:])[0] == ""  # 26 March: the name of April would cover it
    assert months([]) == []
