"""Why a run started when it did, in words."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from evertick.domain.lateness import Way, explain
from evertick.domain.states import RunReason

AT = datetime(2026, 6, 9, 13, tzinfo=UTC)


def way(due: float = 0, fired: float = 0, started: float | None = 0, **fields: Any) -> Way:
    """By seconds after its time."""
    at = Way(
        AT,
        AT + timedelta(seconds=due),
        AT + timedelta(seconds=fired),
        None if started is None else AT + timedelta(seconds=started),
        RunReason.TICK,
        1,
    )
    return at._replace(**fields)


def test_within_a_second_it_is_on_time() -> None:
    assert explain(way(started=0.9), AT) == "It started on time."
    assert explain(way(started=None), AT) == "It is on time so far."


@pytest.mark.parametrize(
    ("late", "reason"),
    [
        (way(due=30, fired=30, started=31), "30 s of that is the job's jitter"),
        (way(due=300, fired=300, started=301, attempt=2), "5 min of that are earlier attempts"),
        (
            way(fired=3600, started=3601, reason=RunReason.CATCH_UP),
            "60 min of that no scheduler fired it: it was missed",
        ),
        (way(fired=5, started=20), "15 s of that it waited for a worker to take it"),
        (
            way(fired=5, started=20, leased_at=AT + timedelta(seconds=19)),
            "14 s of that it waited for a worker to take it",
        ),
        (
            way(fired=5, started=20, leased_at=AT + timedelta(seconds=6)),
            "14 s of that its worker had it, and was busy with others",
        ),
        (way(fired=5, started=5.5), "5.0 s of that it waited to be fired"),
    ],
)
def test_the_longest_part_of_the_way_is_named(late: Way, reason: str) -> None:
    assert reason in explain(late, AT)


def test_what_has_not_started_names_what_it_waits_for() -> None:
    waiting = way(started=None, waiting="no worker serves handler 'x' on queue 'y'")
    said = explain(waiting, AT + timedelta(hours=3))
    assert said == (
        "It has not started 3 h after its time: 3 h of that it waited for a worker"
        " (no worker serves handler 'x' on queue 'y')."
    )
