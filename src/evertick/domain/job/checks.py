"""Checks of a job's texts, instants, payload and labels, beyond what the annotations of its fields say.

What passes is JSON that PostgreSQL can hold and give back unchanged.
"""

import functools
import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import reduce
from math import isfinite
from typing import Any, TypeAlias

import msgspec

from evertick.domain.errors import InvalidInput
from evertick.domain.gate import parse_key
from evertick.domain.idempotency import Template, parse_template
from evertick.domain.job.faults import Faults, accepted_once, below, kind_of
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
Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
MAX_PAYLOAD_BYTES = 65_536
MAX_PAYLOAD_VALUES = MAX_PAYLOAD_BYTES // 2 + 1
"""A value takes at least a byte, and a comma before the next one. With more values a payload is certainly too large."""
MAX_DEPTH = 64
MAX_DIGITS = 1000
"""Of a whole number: jsonb could hold more, but Python reads no more than 4300 back."""
MAX_LABELS = 64
LABEL_VALUE_MAX_LENGTH = 255
_TOO_LARGE = 10**MAX_DIGITS
_MANY_DIGITS = re.compile(rb"(?<!\d)\d{%d}" % MAX_DIGITS)
_LABEL_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()
_compact = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


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


def check_gate_key(text: str, at: str, faults: Faults) -> None:
    check_text(text, at, faults)
    try:
        parse_key(at.removeprefix("/"), text)
    except InvalidInput as refused:
        faults.add(at, refused.reason)


def check_instant(instant: datetime, at: str, faults: Faults) -> None:
    if not FIRST_YEAR < instant.year < LAST_YEAR:
        faults.add(at, f"lies outside of the years {FIRST_YEAR + 1} to {LAST_YEAR - 1}")


def _is_plain(value: object) -> bool:
    """Whether the value certainly fits, decided in C. Other values may fit too: `_PayloadWalk` decides.

    Text that reads back as the value is JSON and nothing else: no tuple, no number as a name, no NaN.
    """
    try:
        text = _encoder.encode(value)
        # Python writes some numbers longer, but never twice as long.
        if len(text) > MAX_PAYLOAD_BYTES // 2 or b"\\u" in text:
            return False
        if len(text) > MAX_DEPTH and text.count(b"{") + text.count(b"[") > MAX_DEPTH:
            return False
        if len(text) > MAX_DIGITS and _MANY_DIGITS.search(text):
            return False
        return bool(_decoder.decode(text) == value)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return False


def check_payload(value: Json, at: str, faults: Faults) -> None:
    """Refuse a payload that is no JSON, or is too large or nested too deep."""
    if value is None or _is_plain(value):
        return
    before = len(faults.found)
    walk = _PayloadWalk(at, faults)
    walk.check(value)
    if walk.left < 0:
        faults.add(at, f"has at most {MAX_PAYLOAD_BYTES} bytes as compact JSON: it has too many values")
    if len(faults.found) > before:
        return
    size = len(_compact.encode(value).encode())
    if size > MAX_PAYLOAD_BYTES:
        faults.add(at, f"has at most {MAX_PAYLOAD_BYTES} bytes as compact JSON, not {size}")


class _PayloadWalk:
    """Checks a value and all values in it, up to as many as may fit."""

    def __init__(self, at: str, faults: Faults) -> None:
        self.left = MAX_PAYLOAD_VALUES
        self._faults = faults
        self._path: list[object] = [at]
        """It becomes a pointer only for a fault: most payloads have none."""

    def check(self, value: object) -> None:
        reason = None
        self.left -= 1
        if isinstance(value, str):
            reason = WHY_UNSTORABLE if UNSTORABLE.search(value) else None
        elif isinstance(value, dict | list):
            if len(self._path) > MAX_DEPTH:
                reason = f"is nested more than {MAX_DEPTH} levels deep"
            else:
                self._check_members(value)
        elif isinstance(value, int):
            reason = None if -_TOO_LARGE < value < _TOO_LARGE else f"is a number of more than {MAX_DIGITS} digits"
        elif isinstance(value, float):
            reason = None if isfinite(value) else "is NaN, infinite or too large: JSON has no such number"
        elif value is not None:
            reason = f"is {kind_of(value)}, which JSON cannot say"
        if reason:
            self._faults.add(_pointer(self._path), reason)

    def _check_members(self, value: dict[object, object] | list[object]) -> None:
        named = isinstance(value, dict)
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            if self._faults.full or self.left < 0:
                return
            self._path.append(name)
            if named:
                _check_name(name, self._path, self._faults)
            self.check(item)
            self._path.pop()


def _check_name(name: object, path: list[object], faults: Faults) -> None:
    if not isinstance(name, str):
        faults.add(_pointer(path), "its name is not a string")
    elif UNSTORABLE.search(name):
        faults.add(_pointer(path), f"its name {WHY_UNSTORABLE}")


def _pointer(path: list[object]) -> str:
    at, *names = path
    return reduce(below, names, str(at))


@accepted_once
def check_labels(labels: Mapping[Any, Any], at: str, faults: Faults) -> None:
    """Refuse labels that cannot be stored or filtered by, and values that are no strings."""
    if len(labels) > MAX_LABELS:
        faults.add(at, f"has at most {MAX_LABELS} labels, not {len(labels)}")
        return
    for name, text in labels.items():
        if not isinstance(name, str) or not _LABEL_KEY.fullmatch(name):
            reason = "must be 1 to 63 characters of A-Z, a-z, 0-9, '.', '_', '/' and '-', the first a letter or digit"
            faults.add(below(at, name), f"its name {reason}")
        elif not isinstance(text, str):
            faults.add(below(at, name), f"must be a string, not {kind_of(text)}")
        elif len(text) > LABEL_VALUE_MAX_LENGTH:
            faults.add(below(at, name), f"has at most {LABEL_VALUE_MAX_LENGTH} characters, not {len(text)}")
        elif UNSTORABLE.search(text):
            faults.add(below(at, name), WHY_UNSTORABLE)
