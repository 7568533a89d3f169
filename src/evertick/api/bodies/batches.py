"""Reads batches of jobs: split while they arrive, decoded in slices once they are admitted.

What is not decoded yet is text: lines, or short arrays.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from evertick.api.bodies.batch_splitting import WINDOW, ArraySplitter, LineSplitter
from evertick.api.bodies.memory_limits import Reservation, count_values
from evertick.api.bodies.request_body import (
    JSON,
    MAX_BATCH_BYTES,
    MAX_VALUES,
    NDJSON,
    TOO_MANY_VALUES,
    IncomingBody,
    check_media_type,
)
from evertick.api.decoding import decode
from evertick.api.problems import HttpProblem, Kind
from evertick.domain.errors import Fault
from evertick.runtime.loop import Slices

MAX_BATCH_VALUES = 1_000_000
MAX_MALFORMED = 1_000
"""With more lines that are not JSON, the whole batch is refused."""
LARGE_BYTES = 65_536
"""A longer batch, or one without a Content-Length, is one of the few that a tenant has at work at once."""

_OTHER_NAMES = ("application/ndjson", "application/jsonl")
"""Of NDJSON, whose name is not registered: programs send these too."""
_decoder = msgspec.json.Decoder()


@dataclass(frozen=True, slots=True)
class BatchText:
    """A batch that is not decoded: `parts` are lines, or arrays of some jobs each."""

    media_type: str
    parts: Sequence[bytes]
    numbers: Sequence[int]
    """What each job is called: the line of the body that it is on."""
    size: int


class UnreadableLine(NamedTuple):
    """Why a line cannot be read as a job, and the status of its verdict."""

    status: int
    reason: str


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """The jobs of a batch that were admitted, and why some cannot be read, by their places. All have `numbers`."""

    media_type: str
    lines: Sequence[object]
    numbers: Sequence[int]
    unreadable: dict[int, UnreadableLine]
    size: int


async def read_batch(body: IncomingBody) -> BatchText:
    """Read a batch within the limits."""
    given = check_media_type(body.headers, JSON, NDJSON, *_OTHER_NAMES)
    media_type = NDJSON if given in _OTHER_NAMES else given
    if body.announced is None or body.announced > LARGE_BYTES:
        await body.reservation.begin_batch()
    splitter = LineSplitter() if media_type == NDJSON else ArraySplitter()
    size = 0
    async for part in body.parts(MAX_BATCH_BYTES):
        size += len(part)
        await splitter.feed(part)
    await splitter.end()
    return BatchText(media_type, splitter.parts, splitter.numbers, size)


async def decode_batch(text: BatchText, reservation: Reservation, most: int) -> DecodedBatch:
    """Decode the first jobs of a batch, as many as were admitted, in slices."""
    slices = Slices()
    values = 0
    for part in text.parts:
        values += count_values(part)
        if slices.is_over:
            await slices.pause()
    if values > MAX_BATCH_VALUES:
        reason = f"has more than {MAX_BATCH_VALUES} values, by its commas and brackets: send several"
        raise HttpProblem(Kind.INVALID, f"the batch {reason}", [Fault("", reason)])
    reservation.add_values(values)
    decoded = _DecodedLines() if text.media_type == NDJSON else _DecodedArrays()
    for part in text.parts:
        if len(decoded.lines) >= most:
            break
        decoded.add(part)
        if slices.is_over:
            await slices.pause()
    unreadable = {place: reason for place, reason in decoded.unreadable.items() if place < most}
    return DecodedBatch(text.media_type, decoded.lines[:most], text.numbers, unreadable, text.size)


class _DecodedArrays:
    def __init__(self) -> None:
        self.lines: list[object] = []
        self.unreadable: dict[int, UnreadableLine] = {}

    def add(self, part: bytes) -> None:
        if _has_too_many_values(part):
            self._refuse(UnreadableLine(Kind.INVALID.status, TOO_MANY_VALUES))  # longer than a window, so it is one job
        else:
            self.lines += decode(part)

    def _refuse(self, unreadable: UnreadableLine) -> None:
        self.unreadable[len(self.lines)] = unreadable
        self.lines.append(None)


class _DecodedLines(_DecodedArrays):
    def add(self, part: bytes) -> None:
        try:
            if _has_too_many_values(part):
                self._refuse(UnreadableLine(Kind.INVALID.status, TOO_MANY_VALUES))
            else:
                self.lines.append(_decoder.decode(part))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._refuse_malformed(f"the line is not JSON in UTF-8: {error}")
        except RecursionError:
            self._refuse_malformed("the line is nested too deeply")

    def _refuse_malformed(self, reason: str) -> None:
        self._refuse(UnreadableLine(Kind.MALFORMED.status, reason))
        if len(self.unreadable) > MAX_MALFORMED:
            detail = f"more than {MAX_MALFORMED} lines cannot be read, so no job is created; the last one: {reason}"
            raise HttpProblem(Kind.MALFORMED, detail)


def _has_too_many_values(text: bytes) -> bool:
    return len(text) > WINDOW + 2 and count_values(text) > MAX_VALUES
