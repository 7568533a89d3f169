"""Owns the one hash behind everything random-looking: jitter, retry spread and cron's `H`.

Equal parts give equal numbers in every process, release and machine; builtin `hash` is salted and would not.
"""

from datetime import datetime, timedelta
from hashlib import blake2b

from evertick.domain.errors import InvalidInput

_DIGEST_BYTES = 16  # for a bound below 2**64 the bias of `%` stays under 2**-64
_MICROSECOND = timedelta(microseconds=1)


def stable_int(bound: int, *parts: str | int) -> int:
    """A number with 0 <= number < bound, uniform over different `parts`."""
    if bound < 1:
        raise ValueError(f"bound must be at least 1, not {bound}")
    return hash_of(b"".join(map(delimited, parts))) % bound


def hash_of(parts: bytes) -> int:
    """The number behind `stable_int`, of parts that are `delimited` and joined: those that are always the same need not
    be made each time.
    """
    return int.from_bytes(blake2b(parts, digest_size=_DIGEST_BYTES).digest(), "big")


def delimited(part: str | int) -> bytes:
    # Kind and length go first, so that ("a", "bc") differs from ("ab", "c") and 1 from "1".
    # surrogatepass: a lone surrogate from sloppy JSON must hash too, not raise.
    if not isinstance(part, str):
        text = str(part)
        return f"i{len(text)}:{text}".encode()
    if part.isascii():
        return f"s{len(part)}:{part}".encode()
    data = part.encode("utf-8", "surrogatepass")
    return f"s{len(data)}:".encode() + data


def jitter_offset(job_id: int, window: timedelta) -> timedelta:
    """The job's offset in [0, window), to the microsecond: a thousand `@hourly` jobs spread out.

    It is the same for as long as job and window are.
    """
    if window < timedelta(0):
        raise InvalidInput("jitter_seconds", "must not be negative")
    if not window:
        return window
    return timedelta(microseconds=stable_int(window // _MICROSECOND, "jitter", job_id))


def due_at(fire_at: datetime, offset: timedelta) -> datetime:
    """When the scheduler acts on a fire time. Only this moves: the fire time keeps naming the run."""
    return fire_at + offset
