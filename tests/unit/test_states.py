import subprocess
import sys
from pathlib import Path

import pytest

from evertick.domain.states import (
    FINAL_RUNS,
    GapReason,
    GapStatus,
    OpenAttempt,
    Outcome,
    RunReason,
    RunStatus,
    gap_status,
    run_status,
)
from state_model import ATTEMPT_TRANSITIONS, RUN_TRANSITIONS, Event, Refused, advance_attempt, advance_run

GENERATE = Path(__file__).parents[2] / "docs" / "generate.py"


def test_the_words_are_those_of_the_api() -> None:
    assert [*map(str, RunStatus)] == ["pending", "running", "retrying", "success", "dead", "cancelled"]
    assert [*map(str, RunReason)] == ["tick", "late", "catch_up", "manual", "replay"]
    assert [*map(str, Outcome)] == ["success", "failed", "timed_out", "lost", "cancelled", "deferred"]
    assert [*map(str, GapReason)] == ["missed", "paused", "overlap", "dst"]


@pytest.mark.parametrize("words", [RunStatus, OpenAttempt, Outcome, RunReason, GapReason, GapStatus, Event])
def test_every_word_says_who_sets_it_and_what_it_means(words: type[RunStatus]) -> None:
    assert all(word.set_by and word.meaning for word in words)


def test_a_word_is_found_by_its_text() -> None:
    assert RunStatus("dead") is RunStatus.DEAD


def test_only_a_missed_gap_is_called_missed() -> None:
    assert {reason for reason in GapReason if gap_status(reason) is GapStatus.MISSED} == {GapReason.MISSED}


@pytest.mark.parametrize("late", [Event.SUCCEED, Event.FAIL, Event.REAP, Event.CANCEL, Event.HAND_BACK])
@pytest.mark.parametrize("outcome", Outcome)
def test_the_second_writer_of_an_outcome_is_refused(outcome: Outcome, late: Event) -> None:
    assert advance_attempt(outcome, late) == Refused(outcome, late)


@pytest.mark.parametrize("status", sorted(FINAL_RUNS))
@pytest.mark.parametrize("event", Event)
def test_a_finished_run_stays_as_it_is_even_when_replayed(status: RunStatus, event: Event) -> None:
    assert advance_run(status, event) == Refused(status, event)


@pytest.mark.parametrize("status", sorted(set(RunStatus) - FINAL_RUNS))
def test_a_user_can_cancel_every_unfinished_run(status: RunStatus) -> None:
    assert advance_run(status, Event.CANCEL) is RunStatus.CANCELLED


@pytest.mark.parametrize("event", [Event.FIRE, Event.QUEUE, Event.TRIGGER, Event.REPLAY])
def test_a_new_run_is_pending_whatever_made_it(event: Event) -> None:
    assert advance_run(None, event) is RunStatus.PENDING


def test_an_attempt_that_nobody_leased_can_only_be_leased_or_cancelled() -> None:
    allowed = {event for event in Event if not isinstance(advance_attempt(OpenAttempt.READY, event), Refused)}
    assert allowed == {Event.LEASE, Event.CANCEL}


def test_every_state_can_be_reached() -> None:
    assert set(ATTEMPT_TRANSITIONS.values()) == {*OpenAttempt, *Outcome}
    assert set(RUN_TRANSITIONS.values()) == set(RunStatus)


def test_every_event_moves_something() -> None:
    assert {event for _, event in [*ATTEMPT_TRANSITIONS, *RUN_TRANSITIONS]} == set(Event)


def test_a_leased_attempt_makes_its_run_running() -> None:
    assert run_status(OpenAttempt.LEASED, timer_pending=False) is RunStatus.RUNNING


def test_a_triggered_run_is_pending_before_its_first_attempt() -> None:
    assert run_status(None, timer_pending=True) is RunStatus.PENDING


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.TIMED_OUT, Outcome.LOST])
def test_a_failed_run_is_retrying_with_a_timer_and_dead_without(outcome: Outcome) -> None:
    assert run_status(outcome, timer_pending=True) is RunStatus.RETRYING
    assert run_status(outcome, timer_pending=False) is RunStatus.DEAD


def test_a_run_cancelled_between_two_attempts_is_cancelled_and_not_dead() -> None:
    assert run_status(Outcome.FAILED, timer_pending=False, withdrawn=True) is RunStatus.CANCELLED


def test_a_deferred_run_is_pending_as_nothing_was_tried() -> None:
    assert run_status(Outcome.DEFERRED, timer_pending=True) is RunStatus.PENDING
    assert run_status(Outcome.DEFERRED, timer_pending=False) is RunStatus.CANCELLED


def test_the_pages_in_docs_are_what_the_code_says() -> None:
    subprocess.run([sys.executable, GENERATE, "--check"], check=True)
