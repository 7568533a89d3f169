"""When the circuit of a host opens, and what counts as a failure of the host."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from evertick.domain.attempt import AttemptOutcome, Deferred, Failed, NotStarted, Succeeded
from evertick.domain.breaker import (
    HALF_OPEN_WAIT,
    LONGEST_DEFERRAL,
    MIN_CALLS,
    RETURNS_PER_SECOND,
    WATCH_TIME,
    WINDOW,
    Circuit,
    CircuitState,
    Report,
    ReturnPace,
    Verdict,
    apply,
    claim_probe,
    new_circuit,
    probe_outcome,
    verdict_of,
)
from evertick.domain.states import Outcome

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (Succeeded(code=204), Verdict.ANSWERED),
        (Failed("answered 404 Not Found", code=404, retryable=False), Verdict.ANSWERED),
        (Failed("answered 302 Found", code=302), Verdict.ANSWERED),
        (Failed("answered 410 Gone", code=410, retryable=False, is_target_gone=True), Verdict.ANSWERED),
        (Failed("answered 429 Too Many Requests", code=429), Verdict.FAILED),
        (Failed("answered 500 Internal Server Error", code=500), Verdict.FAILED),
        (Failed("answered 503 Service Unavailable", code=503), Verdict.FAILED),
        (Failed("the connection was refused"), Verdict.FAILED),
        (Failed("no complete answer within 1 s", result=Outcome.TIMED_OUT), Verdict.FAILED),
        (Failed("not called: 10.0.0.1 is not public", retryable=False), Verdict.UNKNOWN),
        (NotStarted("deferred: no free slot for its host"), Verdict.UNKNOWN),
        (Deferred("stopped with its worker"), Verdict.UNKNOWN),
        (None, Verdict.UNKNOWN),
    ],
)
def test_what_a_delivery_says_about_its_host(outcome: AttemptOutcome | None, verdict: Verdict) -> None:
    assert verdict_of(outcome) is verdict


def watched() -> Circuit:
    """A circuit of which the dispatchers report all calls for some time."""
    return replace(new_circuit(NOW), watched_at=NOW - WATCH_TIME)


def test_it_does_not_open_before_the_successes_of_other_dispatchers_can_be_in() -> None:
    failing = apply(new_circuit(NOW), Report(10 * MIN_CALLS, 10 * MIN_CALLS), NOW)
    assert (failing.state, failing.is_failing, failing.watched_at) == (CircuitState.CLOSED, True, NOW)
    early = apply(failing, Report(), NOW + WATCH_TIME - timedelta(microseconds=1))
    assert early.state is CircuitState.CLOSED
    assert apply(early, Report(), NOW + WATCH_TIME).state is CircuitState.OPEN, "whether or not more calls end"
    healthy = apply(early, Report(11 * MIN_CALLS, 0), NOW + WATCH_TIME)
    assert (healthy.state, healthy.is_failing) == (CircuitState.CLOSED, False)


def test_a_clock_that_was_set_back_delays_an_opening_no_longer_than_the_time_of_watching() -> None:
    failing = apply(new_circuit(NOW), Report(2 * MIN_CALLS, 2 * MIN_CALLS), NOW)
    then = NOW - timedelta(hours=1)
    watched = apply(failing, Report(2 * MIN_CALLS, 2 * MIN_CALLS), then)
    assert watched.state is CircuitState.CLOSED
    assert apply(watched, Report(), then + WATCH_TIME).state is CircuitState.OPEN


def test_a_probe_that_failed_counts_as_no_try() -> None:
    failed = probe_outcome("a.test", Failed("answered 500", code=500))
    assert failed == Deferred("deferred: the probe of a.test failed: answered 500")
    for outcome in (Succeeded(code=200), Failed("answered 404", code=404, retryable=False), NotStarted("no slot")):
        assert probe_outcome("a.test", outcome) is outcome


@pytest.mark.parametrize(
    ("calls", "failures", "state"),
    [
        (MIN_CALLS - 1, MIN_CALLS - 1, CircuitState.CLOSED),
        (MIN_CALLS, MIN_CALLS // 2, CircuitState.OPEN),
        (MIN_CALLS, MIN_CALLS // 2 - 1, CircuitState.CLOSED),
        (1000, 499, CircuitState.CLOSED),
        (1000, 500, CircuitState.OPEN),
    ],
)
def test_it_opens_when_half_of_at_least_twenty_calls_failed(calls: int, failures: int, state: CircuitState) -> None:
    assert apply(watched(), Report(calls, failures), NOW).state is state


def test_failures_of_the_window_before_count_and_older_ones_do_not() -> None:
    circuit = apply(new_circuit(NOW), Report(MIN_CALLS - 5, MIN_CALLS - 5), NOW)
    healthy = Report(5, 0)
    assert apply(circuit, healthy, NOW + WINDOW).state is CircuitState.OPEN
    assert apply(circuit, healthy, NOW + 2 * WINDOW).state is CircuitState.CLOSED


def opened() -> Circuit:
    return apply(watched(), Report(MIN_CALLS, MIN_CALLS, "answered 500"), NOW)


def test_it_says_since_when_and_why_until_it_closes() -> None:
    circuit = opened()
    later = NOW + timedelta(minutes=5)
    probing = claim_probe(circuit, later)
    assert probing is not None
    again = apply(probing, Report(1, 1, "the connection was refused", Verdict.FAILED), later)
    assert (again.state, again.changed_at, again.last_error) == (CircuitState.OPEN, NOW, "the connection was refused")
    probing = claim_probe(again, later + timedelta(minutes=1))
    assert probing is not None
    closed = apply(probing, Report(1, 0, probe=Verdict.ANSWERED), later)
    assert (closed.state, closed.changed_at, closed.recent_calls) == (CircuitState.CLOSED, later, 0)


def test_late_results_of_calls_before_the_opening_change_nothing() -> None:
    circuit = opened()
    assert apply(circuit, Report(100, 0), NOW) == circuit
    assert apply(circuit, Report(100, 100), NOW) == circuit


def test_a_hundred_thousand_deferred_deliveries_come_back_at_the_rate_and_none_waits_for_longer_than_an_hour() -> None:
    pace = ReturnPace()
    delays = [pace.delay(HALF_OPEN_WAIT, 0.0) for _ in range(1_000_000)]
    assert delays[0] == HALF_OPEN_WAIT
    assert delays[100_000] - HALF_OPEN_WAIT == pytest.approx(
        timedelta(seconds=100_000 / RETURNS_PER_SECOND), abs=timedelta(seconds=1)
    )
    assert delays[-1] == LONGEST_DEFERRAL
