"""Reads batches of jobs: cut into jobs and counted while they arrive, decoded in slices once they are admitted.

A batch that is too long is refused as soon as that is known: with its job 10,001, or with a line or an item that is
longer than the body of a single job may be. What is not decoded yet is text: lines, or short arrays.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from evertick.api.bodies.body_limits import Reservation, count_values
from evertick.api.bodies.decoding import decode
from evertick.api.bodies.incoming import (
    JSON,
    MAX_BYTES,
    MAX_VALUES,
    NDJSON,
    TOO_MANY_VALUES,
    IncomingBody,
    check_media_type,
    too_large,
)
from evertick.api.problems import Kind, Problem
from evertick.domain.errors import Fault
from evertick.runtime.slices import Slices

MAX_JOBS = 10_000
MAX_LINES = 2 * MAX_JOBS
"""Blank lines included."""
MAX_BATCH_BYTES = 33_554_432
MAX_BATCH_VALUES = 1_000_000
MAX_MALFORMED = 1_000
"""With more lines that are not JSON, the whole batch is refused."""
LARGE_BYTES = 65_536
"""A longer batch, or one without a Content-Length, is one of the few that a tenant has at work at once."""

_WINDOW = 131_072
"""An array is cut into parts of so many bytes, which are counted and decoded at once: in less than 10 ms."""
_BOUNDARY_WINDOW = 16_384
_MAX_GUESSES = 4
_SPACES = re.compile(rb"[ \t\r\n]*")
_BOUNDARY = re.compile(rb"\}[ \t\r\n]*,(?=[ \t\r\n]*\{)")
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_TRUNCATED = "Input data was truncated"
_raw = msgspec.json.Decoder(msgspec.Raw)
_raws = msgspec.json.Decoder(list[msgspec.Raw])
_decoder = msgspec.json.Decoder()


@dataclass(frozen=True, slots=True)
class BatchText:
    """A batch that is not decoded: `parts` are lines, or arrays of some jobs each."""

    media_type: str
    parts: Sequence[bytes]
    numbers: Sequence[int]
    """What each job is called: the line of the body that it is on."""
    size: int


class Unreadable(NamedTuple):
    """Why a line cannot be read as a job, and the status of its verdict."""

    status: int
    reason: str


@dataclass(frozen=True, slots=True)
class Batch:
    """The jobs of a batch, and why some cannot be read, by their places."""

    media_type: str
    lines: Sequence[object]
    numbers: Sequence[int]
    unreadable: dict[int, Unreadable]
    size: int


async def read_batch(body: IncomingBody) -> BatchText:
    """Read a batch within the limits."""
    media_type = check_media_type(body.headers, JSON, NDJSON)
    if body.announced is None or body.announced > LARGE_BYTES:
        await body.reservation.begin_batch()
    splitter: _Lines | _Array = _Lines() if media_type == NDJSON else _Array()
    size = 0
    async for part in body.parts(MAX_BATCH_BYTES):
        size += len(part)
        await splitter.feed(part)
    await splitter.end()
    return BatchText(media_type, splitter.parts, splitter.numbers, size)


async def decode_batch(text: BatchText, reservation: Reservation) -> Batch:
    """Decode a batch that was admitted, in slices."""
    slices = Slices()
    values = 0
    for part in text.parts:
        values += count_values(part)
        if slices.is_over:
            await slices.pause()
    if values > MAX_BATCH_VALUES:
        reason = f"has more than {MAX_BATCH_VALUES} values, by its commas and brackets: send several"
        raise Problem(Kind.INVALID, f"the batch {reason}", [Fault("", reason)])
    reservation.add_values(values)
    decoded = _DecodedLines() if text.media_type == NDJSON else _DecodedArrays()
    for part in text.parts:
        decoded.add(part)
        if slices.is_over:
            await slices.pause()
    return Batch(text.media_type, decoded.lines, text.numbers, decoded.unreadable, text.size)


class _DecodedArrays:
    def __init__(self) -> None:
        self.lines: list[object] = []
        self.unreadable: dict[int, Unreadable] = {}

    def add(self, part: bytes) -> None:
        if _has_too_many_values(part):
            self._refuse(Unreadable(Kind.INVALID.status, TOO_MANY_VALUES))  # longer than a window, so it is one job
        else:
            self.lines += decode(part)

    def _refuse(self, unreadable: Unreadable) -> None:
        self.unreadable[len(self.lines)] = unreadable
        self.lines.append(None)


class _DecodedLines(_DecodedArrays):
    def add(self, part: bytes) -> None:
        try:
            if _has_too_many_values(part):
                self._refuse(Unreadable(Kind.INVALID.status, TOO_MANY_VALUES))
            else:
                self.lines.append(_decoder.decode(part))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._refuse_malformed(f"the line is not JSON in UTF-8: {error}")
        except RecursionError:
            self._refuse_malformed("the line is nested too deeply")

    def _refuse_malformed(self, reason: str) -> None:
        self._refuse(Unreadable(Kind.MALFORMED.status, reason))
        if len(self.unreadable) > MAX_MALFORMED:
            detail = f"more than {MAX_MALFORMED} lines cannot be read, so no job is created; the last one: {reason}"
            raise Problem(Kind.MALFORMED, detail)


def _has_too_many_values(text: bytes) -> bool:
    return len(text) > _WINDOW + 2 and count_values(text) > MAX_VALUES


def _check_count(jobs: int) -> None:
    if jobs > MAX_JOBS:
        fault = Fault("", f"has at most {MAX_JOBS} jobs")
        raise Problem(Kind.INVALID, f"a batch {fault.reason}", [fault])


@dataclass(slots=True)
class _Lines:
    """NDJSON, cut at its line feeds. Blank lines are no jobs, but are counted, too."""

    parts: list[bytes] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    _count: int = 0
    _begun: list[bytes] = field(default_factory=list)
    _begun_size: int = 0

    async def feed(self, data: bytes) -> None:
        ends = data.count(b"\n")
        if self._count + ends > MAX_LINES:
            fault = Fault("", f"has at most {MAX_LINES} lines, with those that are blank")
            raise Problem(Kind.INVALID, f"a batch {fault.reason}", [fault])
        if ends:
            *lines, data = b"".join((*self._begun, data)).split(b"\n")
            self._begun.clear()
            self._begun_size = 0
            for line in lines:
                self._add(line)
        self._begun.append(data)
        self._begun_size += len(data)
        self._check_length(self._begun_size)

    async def end(self) -> None:
        self._add(b"".join(self._begun))

    def _add(self, line: bytes) -> None:
        self._count += 1
        self._check_length(len(line))
        if line and not line.isspace():
            self.parts.append(line)
            self.numbers.append(self._count)
            _check_count(len(self.parts))

    def _check_length(self, size: int) -> None:
        if size > MAX_BYTES:
            raise _too_long_job()


class _Array:
    """A JSON array, cut into short ones.

    1. Guess where a job ends, near the end of a window. The guess is right if what is before it is an array by itself:
       one that was cut inside of a job would not be. Counting its items is much cheaper than decoding them.
    2. If no guess is right, or there is none, cut the window one job at a time. The decoder tells where a value ends.
    """

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._count = 0
        self._text = b""
        self._at = 0
        self._wanted = _WINDOW
        self._is_open = False
        self._is_closed = False

    @property
    def numbers(self) -> Sequence[int]:
        return range(1, self._count + 1)

    async def feed(self, data: bytes) -> None:
        self._text = self._text[self._at :] + data
        self._at = 0
        if len(self._text) >= self._wanted:
            self._wanted = _WINDOW
            await self._cut(is_last=False)

    async def end(self) -> None:
        await self._cut(is_last=True)
        if not self._is_closed:
            raise _malformed(_TRUNCATED)

    async def _cut(self, *, is_last: bool) -> None:
        self._open()
        slices = Slices()
        exact_until = 0
        while not self._is_closed and self._has_enough(is_last=is_last):
            if slices.is_over:
                await slices.pause()
            if self._at >= exact_until:
                if self._cut_many(is_last=is_last):
                    continue
                exact_until = self._at + _WINDOW
            if not self._cut_one(is_last=is_last):
                return
        if self._is_closed:
            self._skip_space()
            if self._at < len(self._text):
                raise _malformed("trailing characters")

    def _open(self) -> None:
        self._skip_space()
        if self._is_open or self._at == len(self._text):
            return
        if self._text[self._at] != ord("["):
            raise Problem(Kind.INVALID, "the body must be an array of jobs", [Fault("", "must be an array of jobs")])
        self._at += 1
        self._is_open = True

    def _has_enough(self, *, is_last: bool) -> bool:
        self._skip_space()
        return self._is_open and len(self._text) - self._at >= (1 if is_last else _WINDOW)

    def _skip_space(self) -> None:
        spaces = _SPACES.match(self._text, self._at)
        self._at = self._at if spaces is None else spaces.end()

    def _cut_many(self, *, is_last: bool) -> bool:
        """Cut off as many jobs as a window has; whether that was possible."""
        left = len(self._text) - self._at
        if is_last and left <= _WINDOW and self._take(self._text[self._at :], len(self._text), b""):
            self._is_closed = True
            return True
        until = self._at + min(left, _WINDOW)
        ends = [each.span() for each in _BOUNDARY.finditer(self._text, max(self._at, until - _BOUNDARY_WINDOW), until)]
        guesses = reversed(ends[-_MAX_GUESSES:])
        return any(self._take(self._text[self._at : start + 1], end, b"]") for start, end in guesses)

    def _take(self, jobs: bytes, then_at: int, closing: bytes) -> bool:
        part = b"[" + jobs + closing
        try:
            found = len(_raws.decode(part))
        except (msgspec.DecodeError, RecursionError):
            return False
        self._add(part, found)
        self._at = then_at
        return True

    def _cut_one(self, *, is_last: bool) -> bool:
        """Cut off one job; False if there is not all of it yet."""
        if self._text[self._at] == ord("]") and not self._count:
            self._at += 1
            self._is_closed = True
            return True
        reason = _TRUNCATED
        try:
            with memoryview(self._text) as text, text[self._at :] as rest:
                _raw.decode(rest)
        except msgspec.DecodeError as error:
            reason = str(error)
        except RecursionError:
            raise Problem(Kind.MALFORMED, "the body is nested too deeply") from None
        if trailing := _TRAILING.search(reason):
            self._take_one(self._at + int(trailing[1]) - 1)
            return True
        size = len(self._text) - self._at
        if is_last or size > MAX_BYTES:
            raise _too_long_job() if size > MAX_BYTES and reason == _TRUNCATED else _malformed(reason)
        # Part of a number or of a name may look malformed: wait for more, and for twice as much, so that the same
        # beginning is not decoded again with each part.
        self._wanted = 2 * size
        return False

    def _take_one(self, end: int) -> None:
        """Cut off the job that ends here; spaces may be between its last character and here."""
        separator = self._text[end]
        if separator not in b",]":
            raise _malformed("expected ',' or ']'")
        if end - self._at > MAX_BYTES:
            raise _too_long_job()
        self._add(b"[" + self._text[self._at : end] + b"]", 1)
        self._at = end + 1
        self._is_closed = separator == ord("]")

    def _add(self, part: bytes, jobs: int) -> None:
        self._count += jobs
        _check_count(self._count)
        if jobs:
            self.parts.append(part)


def _too_long_job() -> Problem:
    return too_large(f"a job of a batch has at most {MAX_BYTES} bytes")


def _malformed(reason: str) -> Problem:
    return Problem(Kind.MALFORMED, f"the body is not JSON in UTF-8: {reason}")
