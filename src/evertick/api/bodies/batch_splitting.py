"""Cuts a batch into jobs while it arrives, and counts them.

A batch that is too long is refused as soon as that is known: with its job 10,001, or with a line or an item that is
longer than the body of a single job may be.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from evertick.api.bodies.request_body import MAX_BYTES, too_large
from evertick.api.problems import HttpProblem, Kind
from evertick.domain.errors import Fault
from evertick.runtime.loop import Slices

MAX_JOBS = 10_000
MAX_LINES = 2 * MAX_JOBS
"""Blank lines included."""
WINDOW = 131_072
"""An array is cut into parts of so many bytes, which are counted and decoded at once: in less than 10 ms."""

_BOUNDARY_WINDOW = 16_384
_MAX_GUESSES = 4
_SPACES = re.compile(rb"[ \t\r\n]*")
_BOUNDARY = re.compile(rb"\}[ \t\r\n]*,(?=[ \t\r\n]*\{)")
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_TRUNCATED = "Input data was truncated"
_raw = msgspec.json.Decoder(msgspec.Raw)
_raws = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(slots=True)
class LineSplitter:
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
            raise HttpProblem(Kind.INVALID, f"a batch {fault.reason}", [fault])
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


class ArraySplitter:
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
        self._wanted = WINDOW
        self._is_open = False
        self._is_closed = False

    @property
    def numbers(self) -> Sequence[int]:
        return range(1, self._count + 1)

    async def feed(self, data: bytes) -> None:
        self._text = self._text[self._at :] + data
        self._at = 0
        if len(self._text) >= self._wanted:
            self._wanted = WINDOW
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
                exact_until = self._at + WINDOW
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
            raise HttpProblem(
                Kind.INVALID, "the body must be an array of jobs", [Fault("", "must be an array of jobs")]
            )
        self._at += 1
        self._is_open = True

    def _has_enough(self, *, is_last: bool) -> bool:
        self._skip_space()
        return self._is_open and len(self._text) - self._at >= (1 if is_last else WINDOW)

    def _skip_space(self) -> None:
        spaces = _SPACES.match(self._text, self._at)
        self._at = self._at if spaces is None else spaces.end()

    def _cut_many(self, *, is_last: bool) -> bool:
        """Cut off as many jobs as a window has; whether that was possible."""
        left = len(self._text) - self._at
        if is_last and left <= WINDOW and self._take(self._text[self._at :], len(self._text), b""):
            self._is_closed = True
            return True
        until = self._at + min(left, WINDOW)
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
            raise HttpProblem(Kind.MALFORMED, "the body is nested too deeply") from None
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


def _too_long_job() -> HttpProblem:
    return too_large(f"a job of a batch has at most {MAX_BYTES} bytes")


def _malformed(reason: str) -> HttpProblem:
    return HttpProblem(Kind.MALFORMED, f"the body is not JSON in UTF-8: {reason}")


def _check_count(jobs: int) -> None:
    if jobs > MAX_JOBS:
        fault = Fault("", f"has at most {MAX_JOBS} jobs")
        raise HttpProblem(Kind.INVALID, f"a batch {fault.reason}", [fault])
