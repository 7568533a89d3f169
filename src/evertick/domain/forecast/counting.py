"""Counts the firings of rules in each bucket, without walking through their ticks.

1. Jobs of one rule fire alike: a rule is counted once, times its jobs. Jitter moves the jobs of a rule apart, so the
   tick of a rule becomes a few minutes with a number of jobs each.
2. Fixed intervals of the same length differ only in their phase. The jobs of each phase are added up, expanded once.
3. Cron rules with the same days and zone differ only in their times of day. These are added up over all rules, and
   the sum is put on each day of the horizon once (`days`). Around a change of the clocks each rule counts for itself.
4. All other rules count for themselves: by their ticks if those are few, else bucket by bucket. When that takes too
   much work, the rest of them is spread evenly, and the forecast is an estimate.
5. A timer that is due already fires now. What it has missed is left to its policy, and is not forecast.

Due times are exact to the second. Minutes that are over are not counted.
"""

from collections import defaultdict
from collections.abc import Mapping

from evertick.domain.forecast.days import DayTotals
from evertick.domain.forecast.horizon import MINUTE_US, Horizon, RuleLoad
from evertick.domain.forecast.spreading import Spread
from evertick.domain.rule import OneOff, Rule
from evertick.domain.schedule.cron import Cron
from evertick.domain.schedule.instants import DAY_S, SECOND_US
from evertick.domain.schedule.interval import Every
from evertick.domain.schedule.spec import Manual
from evertick.domain.schedule.ticks import FIRST_US, Ticks

MAX_WORK = 400_000
"""Ticks and buckets of rules that count for themselves: about three seconds on a slow core."""
_WALKED = 8
"""For each bucket, so many ticks are walked through rather than counted."""


class Counter:
    """The firings in each bucket of a horizon. Add timers and loads, then ask for the `counts`."""

    def __init__(self, horizon: Horizon, max_work: int = MAX_WORK) -> None:
        self.horizon = horizon
        self.is_estimate = False
        self._counts = [0] * horizon.buckets
        self._from_minute = horizon.from_us // MINUTE_US
        self._minutes = (horizon.to_us - horizon.from_us) // MINUTE_US
        self._bucket_minutes = horizon.bucket_us // MINUTE_US
        self._start_us, self._first_us = horizon.start_us, horizon.first_minute * MINUTE_US
        self._work_left = max_work
        self._spread = 0
        self._days = DayTotals(horizon, self._add_minute)
        # For each length in seconds, the jobs of each phase.
        self._intervals: defaultdict[int, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))

    def add_timer(self, due_us: int, jobs: int) -> None:
        """Timers that fire once: of one-offs, of retries, of runs that wait."""
        start_us = self.horizon.start_us
        if due_us >= start_us:
            self._add_minute(due_us // MINUTE_US, jobs)
        elif self.horizon.from_us <= self.horizon.now_us:
            self._add_minute(start_us // MINUTE_US, jobs)  # it is due, and fires now

    def add(self, load: RuleLoad) -> None:
        """The timers of a rule and all that follow them. Raises what the rule's ticks raise."""
        rule = load.rule
        if isinstance(rule.spec, OneOff | Manual):
            for each in load.pending:
                self.add_timer(each.fire_us + each.offset_s * SECOND_US, each.jobs)
            return
        offsets = self._offsets(load)
        if not offsets:
            return
        furthest_s = max(offsets)
        is_bounded = self._is_bounded(rule, furthest_s)
        match rule.spec:
            case Every(step_us=step_us, anchor_us=anchor_us, total=None, from_anchor=False) if (
                not is_bounded and step_us % SECOND_US == 0
            ):
                phases = self._intervals[step_us // SECOND_US]
                for offset_s, jobs in offsets.items():
                    phases[((anchor_us + offset_s * SECOND_US) % step_us) // SECOND_US] += jobs
            case Cron() as cron if (
                not is_bounded and furthest_s < DAY_S and (zone := self._days.zone(rule.timezone)) is not None
            ):
                self._days.add(cron, rule, zone, offsets)
            case _:
                self._count_alone(rule.ticks(), offsets, furthest_s)

    @property
    def counts(self) -> list[int]:
        """The firings in each bucket."""
        self._days.put()
        for step_s, phases in self._intervals.items():
            self._put_interval(step_s, phases)
        self._intervals.clear()
        if self._spread:
            share, rest = divmod(self._spread, len(self._counts))
            for place in range(len(self._counts)):
                self._counts[place] += share + (place < rest)
            self._spread = 0
        return self._counts

    def _offsets(self, load: RuleLoad) -> Mapping[int, int]:
        """Count what the timers lead to before the first whole minute; the jobs by offset whose ticks follow then."""
        rule, start_us, first_us = load.rule, self._start_us, self._first_us
        offsets: defaultdict[int, int] = defaultdict(int)
        before_us: dict[int, int | None] = {}
        for fire_us, offset_s, jobs in load.pending:
            offset_us = offset_s * SECOND_US
            due_us = fire_us + offset_us
            if due_us < first_us:
                self.add_timer(due_us, jobs)
                low_us = max(fire_us + 1, start_us - offset_us)
                if low_us < first_us - offset_us and (more := rule.ticks().count(low_us, first_us - offset_us)):
                    self._add_minute(start_us // MINUTE_US, more * jobs)
                offsets[offset_s] += jobs
                continue
            if fire_us not in before_us:
                before_us[fire_us] = _tick_before(rule, fire_us)
            last_us = before_us[fire_us]
            if last_us is not None and last_us < first_us - offset_us:
                offsets[offset_s] += jobs
            else:
                # Its schedule or the clock has changed since: the timer stands at no tick, or not at the next one.
                self._add_minute(due_us // MINUTE_US, jobs)
                self._walk(rule.ticks(), {offset_s: jobs}, fire_us + 1, self.horizon.to_us - offset_us)
        return offsets

    def _is_bounded(self, rule: Rule, furthest_s: int) -> bool:
        """Whether the window of the rule cuts off ticks of the horizon."""
        first_us = self._first_us - furthest_s * SECOND_US
        starts_late = rule.start_us is not None and rule.start_us > first_us
        return starts_late or (rule.end_us is not None and rule.end_us < self.horizon.to_us)

    def _count_alone(self, ticks: Ticks, offsets: Mapping[int, int], furthest_s: int) -> None:
        first_us, to_us = self.horizon.first_minute * MINUTE_US, self.horizon.to_us
        low_us = first_us - furthest_s * SECOND_US
        expected = ticks.count(low_us, to_us)
        is_walked = len(offsets) > 1 or expected <= _WALKED * len(self._counts)
        self._work_left -= expected if is_walked else len(self._counts)
        if self._work_left < 0:
            self.is_estimate = True
            self._spread += expected * sum(offsets.values())
        elif is_walked:
            self._walk(ticks, offsets, low_us, to_us)
        else:
            ((offset_s, jobs),) = offsets.items()
            self._count_buckets(ticks, offset_s * SECOND_US, jobs)

    def _walk(self, ticks: Ticks, offsets: Mapping[int, int], low_us: int, high_us: int) -> None:
        Spread(offsets).put(ticks, (low_us, high_us), self.horizon.first_minute, self._add_minute)

    def _count_buckets(self, ticks: Ticks, offset_us: int, jobs: int) -> None:
        first_us, bucket_us = self.horizon.first_minute * MINUTE_US, self.horizon.bucket_us
        for place in range(len(self._counts)):
            low_us = self.horizon.from_us + place * bucket_us
            high_us = low_us + bucket_us
            if high_us > first_us:
                self._counts[place] += jobs * ticks.count(max(low_us, first_us) - offset_us, high_us - offset_us)

    def _put_interval(self, step_s: int, phases: Mapping[int, int]) -> None:
        """Expand the jobs of one interval, by their phases."""
        bucket_s, from_s = self._bucket_minutes * 60, self._from_minute * 60
        low_s, end_s = self.horizon.first_minute * 60, from_s + self._minutes * 60
        if bucket_s % step_s == 0:
            # Each bucket has the same number of ticks, whatever their phase; only the first may be cut.
            whole = -(-(low_s - from_s) // bucket_s)
            total = sum(phases.values()) * (bucket_s // step_s)
            for place in range(whole, len(self._counts)):
                self._counts[place] += total
            end_s = min(from_s + whole * bucket_s, end_s)
        firsts: defaultdict[int, int] = defaultdict(int)
        for phase_s, jobs in phases.items():
            first_s = low_s + (phase_s - low_s) % step_s
            # In steps of whole buckets, only the bucket of the first tick matters.
            firsts[(first_s - from_s) // bucket_s * bucket_s + from_s if step_s % bucket_s == 0 else first_s] += jobs
        for first_s, jobs in firsts.items():
            for at_s in range(first_s, end_s, step_s):
                self._counts[(at_s - from_s) // bucket_s] += jobs

    def _add_minute(self, minute: int, jobs: int) -> None:
        place = minute - self._from_minute
        if 0 <= place < self._minutes:
            self._counts[place // self._bucket_minutes] += jobs


def _tick_before(rule: Rule, at_us: int) -> int | None:
    """The tick before one, or the beginning of time; None: this is none."""
    match rule:
        case Rule(spec=Every(total=None, from_anchor=False) as every, start_us=None, end_us=None):
            # Each job may have an interval of its own, whose ticks nobody else asks for.
            return None if (at_us - every.anchor_us) % every.step_us else at_us - every.step_us
    ticks = rule.ticks()
    if ticks.next(at_us - 1) != at_us:
        return None
    found = ticks.prev(at_us)
    return FIRST_US if found is None else found
