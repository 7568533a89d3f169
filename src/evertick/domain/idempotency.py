"""Owns idempotency keys: templates are parsed once, when a job is written, and rendered for each run.

The key travels as an HTTP header and as the `webhook-id`, whose signature separates its parts by full stops.
So it is made safe whatever a job is called: every character but visible ASCII, and `%` and `.`, is written as
the %XX of its UTF-8 bytes, which keeps different keys different. One that is still longer than 255 characters
ends in a hash of the whole.
"""

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, tzinfo
from enum import StrEnum
from functools import lru_cache
from typing import TypeAlias

from evertick.domain.errors import InvalidInput
from evertick.domain.schedule.instants import SECOND_US, to_us, utc_text
from evertick.domain.stable_hash import stable_int

DEFAULT_TEMPLATE = "{{job_id}}:{{fire_at_unix}}"
TEMPLATE_MAX_LENGTH = 255
KEY_MAX_LENGTH = 255

_FIELD = "idempotency_key_template"
_PLACEHOLDER = re.compile(r"\{\{([^{}]*)\}\}")
_UNSAFE = re.compile(r"[^!-~]|[%.]")
_HASH_BITS = 128


class Placeholder(StrEnum):
    """What a template may name. Dates are the job's zone's: that is the day and week its owner means."""

    JOB_ID = "job_id"
    NAME = "name"
    FIRE_AT = "fire_at"  # 2026-06-09T13:00:00Z, always UTC
    FIRE_AT_UNIX = "fire_at_unix"  # 1781010000; with microseconds (manual runs) 1781010000_250000
    DATE = "date"  # 2026-06-09
    WEEK = "week"  # 2026-W24, of ISO 8601: its year may differ from `year` around New Year
    MONTH = "month"  # 2026-06
    YEAR = "year"  # 2026


Piece: TypeAlias = str | Placeholder


@dataclass(frozen=True, slots=True)
class Template:
    """A checked template: literal texts and placeholders in order."""

    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class KeySubject:
    """What a key is rendered from: the job's public id, its name and its zone."""

    job_id: str
    name: str
    zone: tzinfo


def parse_template(text: str) -> Template:
    """Check and split a template; InvalidInput says what is wrong with it."""
    if not 1 <= len(text) <= TEMPLATE_MAX_LENGTH:
        raise InvalidInput(_FIELD, f"must have 1 to {TEMPLATE_MAX_LENGTH} characters, not {len(text)}")
    if any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 for char in text):
        raise InvalidInput(_FIELD, "must not contain line breaks or other control characters")
    # `split` with one group alternates: literal, name, literal, name, …, literal.
    parts = _PLACEHOLDER.split(text)
    pieces = [_placeholder(part) if index % 2 else _literal(part) for index, part in enumerate(parts)]
    return Template(tuple(piece for piece in pieces if piece))


def _literal(text: str) -> str:
    if brace := next((char for char in text if char in "{}"), None):
        raise InvalidInput(_FIELD, f"has a stray {brace!r}: a placeholder is written {{{{week}}}}")
    return text


def _placeholder(text: str) -> Placeholder:
    name = text.strip(" ")
    if name in set(Placeholder):
        return Placeholder(name)
    nearest = difflib.get_close_matches(name.lower(), list(Placeholder), n=1)
    hint = f"did you mean {nearest[0]!s}?" if nearest else f"known are {', '.join(Placeholder)}"
    raise InvalidInput(_FIELD, f"has the unknown placeholder {name!r}: {hint}")


def render(template: Template, subject: KeySubject, fire_at: datetime) -> str:
    """The key that all attempts of the run at `fire_at` share: 1 to 255 characters of visible ASCII."""
    if fire_at.utcoffset() is None:
        raise ValueError("fire_at has no zone")
    raw = "".join(
        _VALUES[piece](subject, fire_at) if isinstance(piece, Placeholder) else piece for piece in template.pieces
    )
    return _fit(_UNSAFE.sub(_escape, raw))


def default_key(job_id: str, fire_at: datetime) -> str:
    """What `DEFAULT_TEMPLATE` renders to: most jobs have it, and nothing of it has to be made safe."""
    return f"{job_id}:{_fire_at_unix(fire_at)}"


def _fire_at_unix(fire_at: datetime) -> str:
    return _unix_text(to_us(fire_at))


@lru_cache(maxsize=1024)  # runs that are leased together mostly share their fire time
def _unix_text(fire_at_us: int) -> str:
    # The microseconds are kept: a manual run within the second of a tick is another run.
    seconds, microseconds = divmod(fire_at_us, SECOND_US)
    return f"{seconds}_{microseconds:06}" if microseconds else str(seconds)


def _week(day: date) -> str:
    year, week, _ = day.isocalendar()
    return f"{year:04}-W{week:02}"


_VALUES: dict[Placeholder, Callable[[KeySubject, datetime], str]] = {
    Placeholder.JOB_ID: lambda subject, _: subject.job_id,
    Placeholder.NAME: lambda subject, _: subject.name,
    Placeholder.FIRE_AT: lambda _, fire_at: utc_text(fire_at),
    Placeholder.FIRE_AT_UNIX: lambda _, fire_at: _fire_at_unix(fire_at),
    Placeholder.DATE: lambda subject, fire_at: fire_at.astimezone(subject.zone).date().isoformat(),
    Placeholder.WEEK: lambda subject, fire_at: _week(fire_at.astimezone(subject.zone).date()),
    Placeholder.MONTH: lambda subject, fire_at: fire_at.astimezone(subject.zone).date().isoformat()[:7],
    Placeholder.YEAR: lambda subject, fire_at: fire_at.astimezone(subject.zone).date().isoformat()[:4],
}


def _escape(unsafe: re.Match[str]) -> str:
    # surrogatepass: a lone surrogate from sloppy JSON must not make a job unfireable.
    return "".join(f"%{byte:02X}" for byte in unsafe[0].encode("utf-8", "surrogatepass"))


def _fit(key: str) -> str:
    if len(key) <= KEY_MAX_LENGTH:
        return key
    tail = f"~{stable_int(2**_HASH_BITS, 'idempotency', key):0{_HASH_BITS // 4}x}"
    return key[: KEY_MAX_LENGTH - len(tail)] + tail
