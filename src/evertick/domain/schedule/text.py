"""From the text of a schedule to what it means: one entry for every form that `semantics` knows."""

import re
from dataclasses import dataclass
from datetime import datetime

from evertick.domain.errors import InvalidSchedule
from evertick.domain.policies import DstGap, DstOverlap
from evertick.domain.schedule import cron, interval, rrule, rrule_spec, rrule_text
from evertick.domain.schedule.duration import MOST_US, parse_words
from evertick.domain.schedule.instants import DAY_S, SECOND_US, from_seconds, to_us, to_wall
from evertick.domain.schedule.pattern import ListPattern, WallPattern
from evertick.domain.schedule.ticks import FIRST_US, NoTicks, OneTick, Ticks
from evertick.domain.schedule.zone import Zone
from evertick.domain.schedule.zoned import ZonedTicks


@dataclass(frozen=True, slots=True)
class Once:
    """One tick, at a known instant."""

    at_us: int


@dataclass(frozen=True, slots=True)
class Soon:
    """One tick, `delay_us` after a creation that is not known yet."""

    delay_us: int


@dataclass(frozen=True, slots=True)
class Manual:
    """No ticks: only triggers run it."""


WallSpec = cron.Cron | rrule_spec.RRule | interval.EveryMonths
Spec = WallSpec | interval.Every | Once | Soon | Manual


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a text is read: all that its meaning depends on besides the text itself.

    `anchor_us` is the job's creation, `start_us` the opening of its window; either anchors what has no anchor.
    """

    zone: Zone
    gap: DstGap = DstGap.CATCH_UP
    overlap: DstOverlap = DstOverlap.FIRST
    anchor_us: int | None = None
    start_us: int | None = None
    key: str = ""


_ZONE_PREFIX = re.compile(r"(?:CRON_)?TZ=(\S+)\s+(.*)", re.DOTALL)
_DELAY = re.compile(r"in\s+(.+)", re.IGNORECASE | re.DOTALL)
_RECURRENCE = re.compile(r"(RRULE|DTSTART|RDATE|EXDATE)[;:]", re.IGNORECASE)
_INSTANT = re.compile(r"\d{4}-?(\d\d|W)-?\d", re.IGNORECASE | re.ASCII)


def split_zone(text: str, timezone: str) -> tuple[str, str]:
    """The text without the zone written in it, and the zone that holds: the one in the text counts as `timezone`."""
    text = text.strip()
    match = _ZONE_PREFIX.fullmatch(text)
    inside = match[1] if match else rrule_text.zone_in(text) if _RECURRENCE.match(text) else None
    if inside is not None and timezone not in {"UTC", inside}:
        reason = f"{timezone!r} contradicts {inside!r} in the schedule's own text"
        raise InvalidSchedule("timezone", reason)
    return (match[2] if match else text), inside or timezone


def parse(text: str, setting: Setting) -> Spec:  # noqa: PLR0911 - one return for each form of text
    """Read a schedule's text; InvalidSchedule says what is wrong with it."""
    text = text.strip()
    if not text:
        raise InvalidSchedule("schedule", "is empty")
    word = text.lower()
    if word == "manual":
        return Manual()
    if word == "now":
        return _after(0, setting)
    if match := _DELAY.fullmatch(text):
        return _after(_delay(text, match[1]), setting)
    if interval.is_every(text):
        return interval.parse_every(text, _interval_anchor(setting))
    if interval.is_repeating(text):
        return interval.parse_repeating(text, setting.zone)
    if _RECURRENCE.match(text):
        return rrule_spec.resolve(rrule_text.read(text, setting.zone), _recurrence_start(setting))
    if text.upper().startswith("FREQ="):
        raise InvalidSchedule("schedule", f"write a recurrence as `RRULE:{text[:40]}`")
    if _INSTANT.match(text):
        return _instant(text, setting)
    return cron.parse(text, setting.key)


def pattern_of(spec: WallSpec) -> WallPattern:
    """The wall times that a spec by the clock names."""
    return rrule.pattern_of(spec) if isinstance(spec, rrule_spec.RRule) else spec.pattern()


def ticks_of(spec: Spec, zone: Zone, gap: DstGap, overlap: DstOverlap) -> Ticks:
    """The ticks that a spec means in a zone under its daylight-saving policies."""
    match spec:
        case cron.Cron() | interval.EveryMonths():
            return ZonedTicks(pattern_of(spec), zone, gap, overlap, elapsed=spec.elapsed)
        case rrule_spec.RRule():
            return rrule.ticks_of(spec, zone, gap, overlap)
        case interval.Every():
            return spec.ticks()
        case Once(at_us):
            return OneTick(at_us)
        case Soon() | Manual():
            return NoTicks()


def _after(delay_us: int, setting: Setting) -> Once | Soon:
    return Soon(delay_us) if setting.anchor_us is None else Once(setting.anchor_us + delay_us)


def _delay(text: str, words: str) -> int:
    delay = parse_words(words)
    if delay is None or delay > MOST_US:
        raise InvalidSchedule("schedule", f"{text!r}: write a delay as `in 90s`, `in 2h` or `in 3d`, at most 100 years")
    return delay


def _interval_anchor(setting: Setting) -> int:
    if setting.start_us is not None:
        return setting.start_us
    # Whole seconds: jobs made in the same second share a rule, and ticks read well.
    return (setting.anchor_us or 0) // SECOND_US * SECOND_US


def _recurrence_start(setting: Setting) -> int:
    """The wall from which a recurrence without DTSTART counts: the window's opening, or the creation day's midnight."""
    at = (setting.start_us if setting.start_us is not None else setting.anchor_us or 0) // SECOND_US
    wall = at + setting.zone.offset(at) if at or setting.start_us is not None else 0
    return wall if setting.start_us is not None else wall // DAY_S * DAY_S


def _instant(text: str, setting: Setting) -> Once:
    try:
        at = datetime.fromisoformat(text.upper())
    except ValueError:
        at = None
    if at is None or not re.search(r"[T ]\d", text, re.IGNORECASE):
        reason = f"{text!r}: write an instant as `2026-06-09T13:00:00Z`, or `2026-06-09T09:00` in the job's timezone"
        raise InvalidSchedule("schedule", reason)
    if at.tzinfo is not None:
        return Once(to_us(at))
    return Once(_local_instant(text, at, setting))


def _local_instant(text: str, wall: datetime, setting: Setting) -> int:
    """A wall time as an instant. Once means once: of a doubled hour `both` runs the first."""
    overlap = DstOverlap.SECOND if setting.overlap is DstOverlap.SECOND else DstOverlap.FIRST
    found = ZonedTicks(ListPattern([to_wall(wall)]), setting.zone, setting.gap, overlap).next(FIRST_US)
    if found is None:
        reason = f"never fires: {text} does not exist in {setting.zone.name}, the clocks jump over it"
        raise InvalidSchedule("schedule", reason)
    return found + wall.microsecond


def local_time(at_s: int, zone: Zone) -> datetime:
    """What the clock on the wall shows at an instant."""
    return from_seconds(at_s).astimezone(zone.info)
