"""Evaluates what a victim went through: pure functions from observations to faults. Observing is not theirs.

How long things took is judged in the campaign only, because it depends on the machine. There too it may be busy with
other things. The harness measures its own event loop all the time: what its own delay explains is taken off each lag.
The constant is for a machine of one's own; it grows by the slowdown that others cause.
"""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

LAG_FACTOR = 2.0
LAG_CONSTANT_SECONDS = 1.0
"""Under attack a victim's p99 may be twice its calm p99, and this much more."""
LOOP_SECONDS = 0.5
"""For so long the server's loop may stand still, times the slowdown by others. Calm it is a few milliseconds."""
MEMORY_MB = 300.0
"""What an attack may add to the server's memory at its peak, unless it states a bound of its own."""
NO_TIME = -1.0


@dataclass(frozen=True, slots=True)
class Tick:
    """One start that the victim saw: of which job's tick, when, in which run."""

    source: str
    nominal: int
    at: float
    run_id: str


@dataclass(frozen=True, slots=True)
class Call:
    """One request of the victim, and what was wrong with the answer."""

    name: str
    began: float
    seconds: float
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Delay:
    """How late the harness's own loop was at a moment."""

    at: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Observation:
    """All that was seen from one moment to another. Ticks and calls belong to it by when they should have begun."""

    began: float
    ended: float
    sources: Sequence[str]
    ticks: Sequence[Tick]
    calls: Sequence[Call]
    delays: Sequence[Delay]
    memory_mb: float = 0.0
    """Of the server, when it began."""
    peak_mb: float = 0.0
    slowdown: float = 1.0
    """By what others did on the machine."""
    server_delay_seconds: float | None = None
    """For longer than this the server's loop stood still once, as its metrics tell. None: they do not."""

    def own_delay(self, began: float, ended: float) -> float:
        """How long the harness itself stood still at most between two moments."""
        first = bisect_left(self.delays, began, key=lambda delay: delay.at)
        # A standstill that lasts over the end is noticed after it.
        after = bisect_right(self.delays, ended, key=lambda delay: delay.at) + 1
        return max((delay.seconds for delay in self.delays[first:after]), default=0.0)

    def nominal_times(self) -> range:
        return range(math.ceil(self.began), math.ceil(self.ended))

    def lags(self) -> list[float]:
        """Of each tick's first start, without what the harness's own delay explains."""
        first: dict[tuple[str, int], float] = {}
        for tick in self.ticks:
            key = tick.source, tick.nominal
            first[key] = min(tick.at, first.get(key, tick.at))
        return [at - due - self.own_delay(due, at) for (_, due), at in first.items() if due in self.nominal_times()]

    def latencies(self) -> list[float]:
        calls = [call for call in self.calls if call.fault is None and call.seconds != NO_TIME]
        return [call.seconds - self.own_delay(call.began, call.began + call.seconds) for call in calls]


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles in seconds, by the nearest rank."""

    p50: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        ordered = sorted(values) or [0.0]
        return cls(*(ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.99, 1.0)))

    def __str__(self) -> str:
        return f"{self.p50:.2f}/{self.p99:.2f}/{self.max:.2f}"


@dataclass(frozen=True, slots=True)
class AttackResult:
    """What one attack came to."""

    name: str
    faults: tuple[str, ...]
    lag: Spread
    latency: Spread
    missed: int
    failed_calls: int
    grown_mb: float
    server_delay_seconds: float | None
    slowdown: float
    counts: dict[str, float] = field(default_factory=dict)
    """What the attacker counted."""

    @property
    def ok(self) -> bool:
        return not self.faults


def evaluate(
    name: str,
    baseline: Observation,
    attacked: Observation,
    *,
    memory_mb: float = MEMORY_MB,
    is_timed: bool = False,
    counts: dict[str, float] | None = None,
) -> AttackResult:
    """Whether a victim under attack was served as before it; `is_timed`: and as quickly."""
    missed, failed = missed_ticks(attacked), failed_calls(attacked)
    faults = [
        *missed,
        *duplicate_ticks(attacked),
        *failed,
        *too_much_memory(attacked, memory_mb),
        *(slow_faults(baseline, attacked) if is_timed else ()),
    ]
    return AttackResult(
        name,
        tuple(faults),
        Spread.of(attacked.lags()),
        Spread.of(attacked.latencies()),
        len(missed),
        len(failed),
        attacked.peak_mb - attacked.memory_mb,
        attacked.server_delay_seconds,
        attacked.slowdown,
        counts or {},
    )


def missed_ticks(observed: Observation) -> list[str]:
    """Each second of the window has a start of each job."""
    started = {(tick.source, tick.nominal) for tick in observed.ticks}
    return [
        f"{source} has no run for second {nominal - int(observed.began)}"
        for source in observed.sources
        for nominal in observed.nominal_times()
        if (source, nominal) not in started
    ]


def duplicate_ticks(observed: Observation) -> list[str]:
    """No tick has two runs. Several attempts of one run are allowed."""
    runs = Counter(
        (source, nominal) for source, nominal, _ in {(t.source, t.nominal, t.run_id) for t in observed.ticks}
    )
    return [f"{source} has {count} runs for one second" for (source, _), count in runs.items() if count > 1]


def failed_calls(observed: Observation) -> list[str]:
    """No call of the victim failed; and it did call."""
    if not observed.calls:
        return ["the victim made no call"]
    return [
        f"{call.name} after {call.began - observed.began:.1f} s: {call.fault}" for call in observed.calls if call.fault
    ]


def slow_faults(baseline: Observation, attacked: Observation) -> list[str]:
    constant_seconds = LAG_CONSTANT_SECONDS * attacked.slowdown
    return [
        *too_slow("lag", baseline.lags(), attacked.lags(), constant_seconds),
        *too_slow("latency of calls", baseline.latencies(), attacked.latencies(), constant_seconds),
        *stood_still(attacked),
    ]


def too_slow(what: str, baseline: Sequence[float], attacked: Sequence[float], constant_seconds: float) -> list[str]:
    """The p99 is within its bound."""
    allowed = LAG_FACTOR * max(0.0, Spread.of(baseline).p99) + constant_seconds
    found = Spread.of(attacked).p99
    return [f"p99 of {what} is {found:.2f} s, over {allowed:.2f} s"] if found > allowed else []


def too_much_memory(attacked: Observation, most_mb: float) -> list[str]:
    grown = attacked.peak_mb - attacked.memory_mb
    return [f"memory grew by {grown:.0f} MB, over {most_mb:.0f} MB"] if grown > most_mb else []


def stood_still(attacked: Observation) -> list[str]:
    """The server's own loop was never late for long."""
    if attacked.server_delay_seconds is None:
        return ["the server does not tell how late its loop was"]
    allowed = LOOP_SECONDS * attacked.slowdown
    found = attacked.server_delay_seconds
    return [f"the server's loop stood still for over {found:g} s, not {allowed:.2f} s"] if found >= allowed else []
