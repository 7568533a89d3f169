"""From the text of a schedule to what it means: one entry for every form that the semantics know."""

import re
from dataclasses import dataclass

from evertick.domain.errors import InvalidSchedule
from evertick.domain.limits import RRULE_MAX_CHARACTERS
from evertick.domain.policies import DstGap, DstOverlap
from evertick.domain.schedule import cron, interval
from evertick.domain.schedule.instants import DAY_S, SECOND_US
from evertick.domain.schedule.interval import MAX_US, instant_us, parse_words, read_instant
from evertick.domain.schedule.rrule import spec as rrule_spec, text as rrule_text
from evertick.domain.schedule.rrule.spec import Anchor
from evertick.domain.schedule.spec import Manual, Once, Soon, Spec
from evertick.domain.schedule.zone import Zone

MAX_CHARACTERS = 512
"""Of all forms but a recurrence, whose lists of dates may be long."""


@dataclass(frozen=True, slots=True)
class ParseContext:
    """Where a text is read: all that its meaning depends on besides the text itself.

    `anchor_us` is the job's creation, `start_us` the opening of its window; either anchors what has no anchor.
    """

    zone: Zone
    gap: DstGap = DstGap.CATCH_UP
    overlap: DstOverlap = DstOverlap.FIRST
    anchor_us: int | None = None
    start_us: int | None = None
    key: str = ""


_ZONE_PREFIX = re.compile(r"(?:CRON_)?TZ=(\S+)\s+(.*)", re.DOTALL | re.IGNORECASE)
_DELAY = re.compile(r"in\s+(.+)", re.IGNORECASE | re.DOTALL)
_RECURRENCE = re.compile(r"(RRULE|DTSTART|RDATE|EXDATE|EXRULE)[;:]", re.IGNORECASE)
_INSTANT = re.compile(r"\d{4}-?(\d\d|W)-?\d", re.IGNORECASE | re.ASCII)

# Asked of each job of a batch, so in one step: with or without a zone before it.
_ZONE = r"\s*(?:(?:CRON_)?TZ=\S+\s+)?"
_ONE_OFF = r"now\s*\Z|in\s+\S|[0-9]{4}-?(?:[0-9]{2}|W)-?[0-9]"
_ZONED_ONE_OFF = re.compile(_ZONE + f"(?:{_ONE_OFF})", re.IGNORECASE)
_ZONED_CHEAP = re.compile(_ZONE + rf"(?:{_ONE_OFF}|@?every\s|manual\s*\Z)", re.IGNORECASE)


def split_zone(text: str, timezone: str) -> tuple[str, str]:
    """The text without the zone written in it, and the zone that holds: the one in the text counts as `timezone`."""
    if len(text) > RRULE_MAX_CHARACTERS:
        raise InvalidSchedule("schedule", f"has at most {RRULE_MAX_CHARACTERS} characters, not {len(text)}")
    text = text.strip()
    match = _ZONE_PREFIX.fullmatch(text)
    inside = match[1] if match else rrule_text.zone_in(text) if _RECURRENCE.match(text) else None
    if inside is not None and timezone not in {"UTC", inside}:
        reason = f"{timezone!r} contradicts {inside!r} in the schedule's own text"
        raise InvalidSchedule("timezone", reason)
    return (match[2] if match else text), inside or timezone


def is_costly(text: str) -> bool:
    """Whether its ticks may take long to find: those of one-offs and of fixed intervals are plain arithmetic."""
    return _ZONED_CHEAP.match(text) is None


def is_one_off(text: str) -> bool:
    """Whether a text looks like `now`, a delay or an instant."""
    return _ZONED_ONE_OFF.match(text) is not None


def parse(text: str, setting: ParseContext) -> Spec:  # noqa: PLR0911 - one return for each form of text
    """Read a schedule's text; InvalidSchedule says what is wrong with it."""
    text = text.strip()
    if _RECURRENCE.match(text):
        return rrule_spec.resolve(rrule_text.read(text, setting.zone), _recurrence_anchor(setting))
    word = _of_usable_length(text).lower()
    if word == "manual":
        return Manual()
    if word == "now":
        return _after(0, setting)
    if match := _DELAY.fullmatch(text):
        return _after(_delay(text, match[1]), setting)
    if interval.is_every(text):
        return interval.parse_every(text, _interval_anchor(setting))
    if interval.is_repeating(text):
        return interval.parse_repeating(text, setting.zone, setting.gap, setting.overlap)
    if word.startswith("freq="):
        raise InvalidSchedule("schedule", f"write a recurrence as `RRULE:{text[:40]}`")
    if _INSTANT.match(text):
        return _instant(text, setting)
    return cron.parse(text, setting.key)


def _of_usable_length(text: str) -> str:
    if not text:
        raise InvalidSchedule("schedule", "is empty")
    if len(text) > MAX_CHARACTERS:
        raise InvalidSchedule("schedule", f"has at most {MAX_CHARACTERS} characters, not {len(text)}")
    return text


def _after(delay_us: int, setting: ParseContext) -> Once | Soon:
    if setting.anchor_us is None:
        return Soon(delay_us, setting.start_us)
    at_us = setting.anchor_us + delay_us
    return Once(at_us if setting.start_us is None else max(at_us, setting.start_us))


def _delay(text: str, words: str) -> int:
    delay = parse_words(words)
    if delay is None or delay > MAX_US:
        raise InvalidSchedule("schedule", f"{text!r}: write a delay as `in 90s`, `in 2h` or `in 3d`, at most 100 years")
    return delay


def _interval_anchor(setting: ParseContext) -> int:
    if setting.start_us is not None:
        return setting.start_us
    # Whole seconds: jobs made in the same second share a rule, and ticks read well.
    return (setting.anchor_us or 0) // SECOND_US * SECOND_US


def _recurrence_anchor(setting: ParseContext) -> Anchor:
    """Where a recurrence without DTSTART begins: with the window, or with the job, whose day is its first period."""
    if setting.start_us is not None:
        wall = setting.zone.wall_at(-(-setting.start_us // SECOND_US))
        return Anchor(wall, wall)
    if setting.anchor_us is None:
        return Anchor(0, None)
    wall = setting.zone.wall_at(setting.anchor_us // SECOND_US)
    return Anchor(wall // DAY_S * DAY_S, wall + 1)


def _instant(text: str, setting: ParseContext) -> Once:
    at = read_instant(text)
    if at is None:
        reason = f"{text!r}: write an instant as `2026-06-09T13:00:00Z`, or `2026-06-09T09:00` in the job's timezone"
        raise InvalidSchedule("schedule", reason)
    return Once(instant_us(at, setting.zone, setting.gap, setting.overlap))
