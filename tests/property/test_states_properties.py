"""The run's table and the status derived from its attempts are two views of one life: they must agree."""

from dataclasses import dataclass, replace

from hypothesis import given, strategies as st

from evertick.domain.states import (
    FINAL_RUNS,
    AttemptStatus,
    Outcome,
    RunStatus,
    run_status,
)
from state_model import Event, Refused, advance_attempt, advance_run

FAILURES = {Event.FAIL, Event.TIME_OUT, Event.REAP}


@dataclass(frozen=True)
class Life:
    """One run as the store would keep it: its latest attempt, its timer, and the mark of a cancel between."""

    status: RunStatus | None = None
    latest: AttemptStatus | None = None
    timer_pending: bool = False
    withdrawn: bool = False

    def derived(self) -> RunStatus:
        return run_status(self.latest, timer_pending=self.timer_pending, withdrawn=self.withdrawn)


def step(life: Life, event: Event, *, retries_left: bool) -> Life:
    """What the statement behind `event` writes; an unchanged life when it writes nothing."""
    run_event = (Event.RETRY if retries_left else Event.GIVE_UP) if event in FAILURES else event
    status = advance_run(life.status, run_event)
    if isinstance(status, Refused):
        return life
    if event in {Event.QUEUE, Event.TRIGGER, Event.REPLAY}:
        return replace(life, status=status, timer_pending=True)
    if event is Event.FIRE:
        return fired(life, status)
    if event is Event.CANCEL and life.timer_pending:
        return replace(life, status=status, timer_pending=False, withdrawn=True)
    latest = advance_attempt(life.latest, event)
    if isinstance(latest, Refused):
        return life
    timer_pending = latest is Outcome.DEFERRED or run_event is Event.RETRY
    return replace(life, status=status, latest=latest, timer_pending=timer_pending)


def fired(life: Life, status: RunStatus) -> Life:
    if life.status is not None and not life.timer_pending:
        return life
    latest = advance_attempt(None, Event.FIRE)
    assert not isinstance(latest, Refused)
    return replace(life, status=status, latest=latest, timer_pending=False)


@given(st.lists(st.tuples(st.sampled_from(Event), st.booleans()), max_size=40))
def test_the_derived_status_follows_the_table_through_any_life(events: list[tuple[Event, bool]]) -> None:
    life = Life()
    for event, retries_left in events:
        life = step(life, event, retries_left=retries_left)
        if life.status is not None:
            assert life.derived() is life.status


@given(st.lists(st.sampled_from(Event), max_size=30), st.sampled_from(sorted(FINAL_RUNS)))
def test_no_sequence_of_events_moves_a_finished_run(events: list[Event], final: RunStatus) -> None:
    assert all(isinstance(advance_run(final, event), Refused) for event in events)


@given(st.lists(st.sampled_from(Event), max_size=60))
def test_an_attempt_takes_at_most_one_outcome(events: list[Event]) -> None:
    status: AttemptStatus | None = None
    outcomes = 0
    for event in events:
        reached = advance_attempt(status, event)
        if not isinstance(reached, Refused):
            status = reached
            outcomes += isinstance(reached, Outcome)
    assert outcomes <= 1
