"""Checks of a job's single texts and instants, beyond what the annotations of its fields say."""

import functools
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeAlias

from evertick.domain.errors import InvalidInput
from evertick.domain.idempotency import Template, parse_template
from evertick.domain.job.faults import Faults
from evertick.domain.schedule.instants import FIRST_YEAR, LAST_YEAR

Check: TypeAlias = Callable[[Any, str, Faults], None]
"""Adds what is wrong with a value, which stands at a JSON pointer, to the faults."""

NAME_MAX_LENGTH = 255

UNSTORABLE = re.compile("[\0\ud800-\udfff]")
"""What PostgreSQL's text and jsonb cannot hold: NUL, and surrogates that are no half of a pair."""

WHY_UNSTORABLE = "contains a NUL character (\\u0000) or a lone surrogate, which PostgreSQL cannot store"

_CONTROL = re.compile("[\0-\x1f\x7f-\x9f]")

cached_template: Callable[[str], Template] = functools.lru_cache(maxsize=1024)(parse_template)
"""Most jobs share a few templates, so each is parsed once."""


def check_text(text: str, at: str, faults: Faults) -> None:
    """Refuse a text that cannot be stored."""
    # Printable texts have no control characters, no lone surrogates, and no white space but the plain one.
    if not text.isprintable() and UNSTORABLE.search(text):
        faults.add(at, WHY_UNSTORABLE)


def check_name(name: str, at: str, faults: Faults) -> None:
    if name and name.isprintable() and name[0] != " " and name[-1] != " ":
        return
    if UNSTORABLE.search(name):
        faults.add(at, WHY_UNSTORABLE)
    elif _CONTROL.search(name):
        faults.add(at, "must not contain line breaks or other control characters")
    elif not name.strip():
        faults.add(at, "must not be blank")
    elif name != name.strip():
        faults.add(at, "must not begin or end with white space")


def check_template(text: str, at: str, faults: Faults) -> None:
    check_text(text, at, faults)
    try:
        cached_template(text)
    except InvalidInput as refused:
        faults.add(at, refused.reason)


def check_instant(instant: datetime, at: str, faults: Faults) -> None:
    if not FIRST_YEAR < instant.year < LAST_YEAR:
        faults.add(at, f"lies outside of the years {FIRST_YEAR + 1} to {LAST_YEAR - 1}")
