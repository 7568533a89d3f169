"""The circuit breaker against a model that keeps every call in a list, under any order of calls, probes and pauses."""

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from evertick.domain.breaker import (
    LONGEST_DEFERRAL,
    MIN_CALLS,
    PROBE_MAX,
    PROBE_MIN,
    PROBE_TIME,
    RETURNS_PER_SECOND,
    WATCH_TIME,
    WATCHED_FAILURES,
    WINDOW,
    CircuitState,
    Report,
    ReturnPace,
    Verdict,
    apply,
    claim_probe,
    new_circuit,
    probe_interval,
    reset,
    wait_for_probe,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
pauses = st.one_of(st.integers(0, 5_000), st.integers(20_000, 70_000)).map(lambda ms: timedelta(milliseconds=ms))


class Call(NamedTuple):
    at: datetime
    failed: bool


class BreakerModel(RuleBasedStateMachine):
    """Dispatchers that call, report and probe. The model knows each call; the circuit only counts."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.circuit = new_circuit(START)
        self.state = CircuitState.CLOSED
        self.window_at = START
        self.calls: list[Call] = []
        self.watched_at: datetime | None = None
        self.openings = 0
        self.probe_at = START

    @rule(pause=pauses)
    def wait(self, pause: timedelta) -> None:
        self.now += pause

    @rule(failures=st.integers(0, 25), successes=st.integers(0, 25))
    def deliver(self, failures: int, successes: int) -> None:
        self.circuit = apply(self.circuit, Report(failures + successes, failures), self.now)
        if self.state is not CircuitState.CLOSED:
            return
        while self.now - self.window_at >= WINDOW:  # the windows follow each other, unless nothing was called in one
            stale = self.now - self.window_at >= 2 * WINDOW
            self.window_at = self.now if stale else self.window_at + WINDOW
            self.calls = [] if stale else self.calls
        self.calls += [Call(self.now, failed=True)] * failures + [Call(self.now, failed=False)] * successes
        counted = [call for call in self.calls if call.at >= self.window_at - WINDOW]
        assert all(self.now - call.at < 2 * WINDOW for call in counted)
        failed = sum(call.failed for call in counted)
        assert (self.circuit.recent_calls, self.circuit.recent_failures) == (len(counted), failed)
        self.watched_at = (self.watched_at or self.now) if failed >= WATCHED_FAILURES else None
        is_failing = len(counted) >= MIN_CALLS and failed * 2 >= len(counted)
        if is_failing and self.watched_at is not None and self.now - self.watched_at >= WATCH_TIME:
            self.open()
        else:
            assert self.circuit.is_failing == is_failing

    @rule()
    def ask_for_a_probe(self) -> None:
        claimed = claim_probe(self.circuit, self.now)
        assert (claimed is not None) == (self.state is not CircuitState.CLOSED and self.now >= self.probe_at)
        if claimed is not None:
            self.openings += self.state is CircuitState.HALF_OPEN
            self.circuit, self.state, self.probe_at = claimed, CircuitState.HALF_OPEN, self.now + PROBE_TIME
            assert claim_probe(self.circuit, self.now) is None, "one dispatcher probes, not all"

    @rule(verdict=st.sampled_from(Verdict))
    def end_a_probe(self, verdict: Verdict) -> None:
        if self.state is CircuitState.CLOSED:
            return
        self.circuit = apply(self.circuit, Report(1, int(verdict is Verdict.FAILED), probe=verdict), self.now)
        if verdict is Verdict.ANSWERED:
            self.close()
        elif self.state is CircuitState.HALF_OPEN and verdict is Verdict.FAILED:
            self.open()
        elif self.state is CircuitState.HALF_OPEN:
            self.state, self.probe_at = CircuitState.OPEN, self.now

    @rule()
    def reset(self) -> None:
        self.circuit = reset(self.circuit, self.now)
        self.close()

    def open(self) -> None:
        self.state, self.watched_at = CircuitState.OPEN, None
        self.openings += 1
        self.probe_at = self.now + min(PROBE_MIN * 2 ** (self.openings - 1), PROBE_MAX)

    def close(self) -> None:
        self.state, self.calls, self.openings, self.window_at = CircuitState.CLOSED, [], 0, self.now
        self.watched_at = None

    @invariant()
    def it_is_in_the_state_of_the_model(self) -> None:
        assert (self.circuit.state, self.circuit.openings) == (self.state, self.openings)

    @invariant()
    def a_probe_is_never_further_away_than_a_minute(self) -> None:
        if self.state is not CircuitState.CLOSED:
            assert wait_for_probe(self.circuit, self.now) == max(self.probe_at - self.now, timedelta(0))
            assert claim_probe(self.circuit, self.now + PROBE_MAX) is not None

    @invariant()
    def dispatchers_watch_what_is_not_closed(self) -> None:
        watched = self.circuit.watched_until
        assert self.state is CircuitState.CLOSED or (watched is not None and watched.year == 9999)


TestBreakerModel = BreakerModel.TestCase
TestBreakerModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@given(st.integers(1, 100_000))
def test_the_time_to_the_next_probe_grows_between_its_bounds(openings: int) -> None:
    assert PROBE_MIN <= probe_interval(openings) <= probe_interval(openings + 1) <= PROBE_MAX


@given(st.integers(-10_000_000, 10_000_000))
def test_a_clock_that_was_set_never_keeps_a_circuit_open_for_longer_than_a_minute(seconds: int) -> None:
    failing = apply(new_circuit(START - WATCH_TIME), Report(MIN_CALLS, MIN_CALLS), START - WATCH_TIME)
    opened = apply(failing, Report(), START)
    set_to = START + SECOND * seconds
    wait = wait_for_probe(opened, set_to)
    assert wait <= PROBE_MAX
    assert claim_probe(opened, set_to + wait) is not None


@given(st.lists(st.tuples(st.floats(0, 30), st.floats(0, 60)), max_size=300))
def test_what_was_deferred_comes_back_one_by_one_and_not_before_its_time(deferrals: list[tuple[float, float]]) -> None:
    pace, now = ReturnPace(), 0.0
    returns: list[float] = []
    for pause, wait in deferrals:
        now += pause / 100
        delay = pace.delay(SECOND * wait, now)
        assert SECOND * wait - timedelta(microseconds=1) <= delay <= LONGEST_DEFERRAL
        returns.append(now + delay.total_seconds())
    for early, late in zip(returns, returns[RETURNS_PER_SECOND:], strict=False):
        assert late - early >= 1 - 1e-3, "no more than the rate in any second"
