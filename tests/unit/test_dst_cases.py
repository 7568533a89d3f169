"""The daylight-saving cases: what Evertick's default and its policies do where nine other schedulers were watched."""

import json
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import pytest

from evertick import InvalidSchedule, Schedule
from evertick.domain.policies import DST_PRESETS, DstGap, DstOverlap

CASES = {
    case["name"]: case
    for case in json.loads((Path(__file__).parents[1] / "data/dst-cases.json").read_text(encoding="utf-8"))["cases"]
}
NEVER = "Never 30 Feb"
CORRECTION = "Apia day skipped 2011-12-30"
FIRING = sorted(CASES.keys() - {NEVER})

COLUMNS = {
    "quartz": DST_PRESETS["quartz"],
    "robfig": DST_PRESETS["kubernetes"],  # which parses and steps with robfig/cron
    "systemd": (DstGap.SKIP, DstOverlap.FIRST),
    "apscheduler3": (DstGap.SHIFT, DstOverlap.BOTH),
    "cron-parser": (DstGap.SHIFT, DstOverlap.FIRST),
}

ELAPSED = "`*` or `*/n` in minute or hour: Evertick follows elapsed time, under every policy"
STAR_STEP_OR = "takes `*/10` as a restriction, so either day field may match"
MIDNIGHT = "loses the tick when the gap begins at midnight"
MONDAY_ZERO = "numbers weekdays from Monday = 0"

EXCLUDED = {
    ("US overlap hourly", "quartz"): ELAPSED,
    ("US overlap hourly", "systemd"): ELAPSED,
    ("US overlap 30 */1", "quartz"): ELAPSED,
    ("US overlap 30 */1", "systemd"): ELAPSED,
    ("US overlap */15 1", "quartz"): ELAPSED,
    ("US overlap */15 1", "systemd"): ELAPSED,
    ("US overlap */15 1", "cron-parser"): ELAPSED,
    ("LordHowe overlap */15", "quartz"): ELAPSED,
    ("LordHowe overlap */15", "systemd"): ELAPSED,
    ("LordHowe overlap */15", "cron-parser"): ELAPSED,
    ("US gap 0 */2", "apscheduler3"): "makes up even for `*/2`",
    ("US gap 0 */2", "cron-parser"): "makes up even for `*/2`",
    ("DOM star-step + DOW 0 0 */10 * 0", "quartz"): "refuses two day fields",
    ("DOM star-step + DOW 0 0 */10 * 0", "systemd"): "refuses two day fields",
    ("DOM star-step + DOW 0 0 */10 * 0", "robfig"): STAR_STEP_OR,
    ("DOM star-step + DOW 0 0 */10 * 0", "cron-parser"): STAR_STEP_OR,
    ("DOM star-step + DOW 0 0 */10 * 0", "apscheduler3"): MONDAY_ZERO,
    ("US gap weekly sunday 02:30", "apscheduler3"): MONDAY_ZERO,
    ("Sunday as 7", "apscheduler3"): "knows no weekday 7",
    ("Sunday as 7", "robfig"): "knows no weekday 7",
    ("Beirut midnight gap 00:00", "apscheduler3"): MIDNIGHT,
    ("Beirut midnight gap 00:00", "cron-parser"): MIDNIGHT,
    ("Sao_Paulo 2018 midnight gap 00:00", "apscheduler3"): MIDNIGHT,
    ("Sao_Paulo 2018 midnight gap 00:00", "cron-parser"): MIDNIGHT,
    ("Havana midnight gap 00:00 @daily", "apscheduler3"): MIDNIGHT,
    ("Havana midnight gap 00:00 @daily", "cron-parser"): MIDNIGHT,
    ("LordHowe gap 02:15 (30min)", "cron-parser"): "loses the tick when the gap is half an hour",
    ("US gap 0,30 2", "apscheduler3"): "shifts 02:00 onto 03:00 and forgets 02:30",
    ("Troll 2h overlap 01:30", "apscheduler3"): "sees one of the two instants when the overlap is two hours",
}


class Cell(NamedTuple):
    """One case as one other scheduler ran it."""

    name: str
    column: str


COMPARED = [Cell(name, column) for name in FIRING for column in COLUMNS if (name, column) not in EXCLUDED]


def fires(name: str, gap: str = DstGap.CATCH_UP, overlap: str = DstOverlap.FIRST) -> list[str]:
    case = CASES[name]
    schedule = Schedule(case["cron"], case["zone"], gap, overlap)
    found = schedule.upcoming(datetime.fromisoformat(case["after"]), case["count"])
    return [at.strftime("%Y-%m-%dT%H:%M:%SZ") for at in found]


def test_every_case_is_told_apart_by_its_name() -> None:
    assert len(CASES) == 42


@pytest.mark.parametrize("name", sorted(set(FIRING) - {CORRECTION}))
def test_by_default_a_case_fires_as_in_debians_cron(name: str) -> None:
    assert fires(name) == CASES[name]["fires"]["cronsim"]


@pytest.mark.parametrize("gap", DstGap)
@pytest.mark.parametrize("overlap", DstOverlap)
def test_a_correction_of_three_hours_or_more_is_never_made_up(gap: DstGap, overlap: DstOverlap) -> None:
    assert fires(CORRECTION, gap, overlap) == ["2011-12-29T22:00:00Z", "2011-12-30T22:00:00Z", "2011-12-31T22:00:00Z"]


def test_the_30th_of_february_is_refused() -> None:
    with pytest.raises(InvalidSchedule, match="never fires: day 30 does not occur in month 2"):
        fires(NEVER)


@pytest.mark.parametrize("cell", COMPARED, ids="-".join)
def test_a_policy_fires_as_the_scheduler_that_has_it(cell: Cell) -> None:
    assert fires(cell.name, *COLUMNS[cell.column]) == CASES[cell.name]["fires"][cell.column]


@pytest.mark.parametrize(("name", "column"), EXCLUDED)
def test_a_scheduler_is_left_out_only_where_it_really_differs(name: str, column: str) -> None:
    assert fires(name, *COLUMNS[column]) != CASES[name]["fires"][column]


def test_the_presets_are_the_documented_pairs() -> None:
    assert DST_PRESETS == {
        "evertick": ("catch_up", "first"),
        "kubernetes": ("skip", "both"),
        "quartz": ("skip", "second"),
        "airflow": ("shift", "second"),
        "eventbridge": ("skip", "first"),
    }
