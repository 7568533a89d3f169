"""Numbers that name things: job ids that carry their partition, public texts of ids, fencing tokens, seq.

A public id is a prefix and lower-case Crockford base32 of fixed length, so texts sort as their numbers do.
Exactly one text names an id: no upper case, no look-alikes, no missing zeros.
"""

import functools
import re
from enum import StrEnum
from typing import NamedTuple

from evertick.domain.errors import InvalidInput

PARTITIONS = 256
PARTITION_BITS = 8
MAX_ID = 2**63 - 1  # a bigint's
MAX_JOB_NUMBER = MAX_ID >> PARTITION_BITS
MAX_FIRE_AT_US = 253_402_300_799_999_999  # 9999-12-31T23:59:59.999999Z, the last instant a datetime can say

# Crockford's: no i, l, o, u. In ASCII order, which is what makes texts sort as numbers.
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = tuple(high + low for high in _ALPHABET for low in _ALPHABET)
_WIDTH = 13  # base32 digits for 63 bits
_PREFIX_LENGTH = 4  # with its underscore
_DIGITS = re.compile(f"[{_ALPHABET}]*")
_TO_INT_DIGITS = str.maketrans(_ALPHABET, "0123456789abcdefghijklmnopqrstuv")
_TOKEN = re.compile(r"(0|[1-9][0-9]{0,18})\.(0|[1-9][0-9]{0,18})")
_MASK_64 = 2**64 - 1


class Prefix(StrEnum):
    """What a public id names."""

    TENANT = "ten"
    API_KEY = "key"
    JOB = "job"
    RUN = "run"
    REPLAY = "rpl"
    ALERT = "alr"
    SMEAR = "smr"

    @property
    def field(self) -> str:
        return f"{self.name.lower()}_id"


class RunKey(NamedTuple):
    """What identifies a run, before and after it exists."""

    job_id: int
    fire_at_us: int  # microseconds since 1970, UTC


class FencingToken(NamedTuple):
    """One attempt's place: later attempts of a job have larger `seq`."""

    lane_id: int
    seq: int


def job_id_of(number: int, partition: int) -> int:
    _within("job number", number, MAX_JOB_NUMBER)
    _within("partition", partition, PARTITIONS - 1)
    return number << PARTITION_BITS | partition


def partition_of(job_id: int) -> int:
    return job_id & (PARTITIONS - 1)


def partition_for(tenant_id: int, job_number: int) -> int:
    """The partition of a new job, by its tenant and its number. Every tenant is spread over all partitions.

    The tenant's hash gives a first partition and an odd stride. Odd strides visit all 256 partitions before any twice.
    """
    first, stride = _walk_of(tenant_id)
    return (first + stride * job_number) % PARTITIONS


@functools.lru_cache(maxsize=1024)
def _walk_of(tenant_id: int) -> tuple[int, int]:
    mixed = _mix(tenant_id)
    return mixed >> 56, (mixed >> 48) | 1


@functools.lru_cache(maxsize=1024)  # a delivery needs the id of its job more than once
def format_id(prefix: Prefix, number: int) -> str:
    if not 0 <= number <= MAX_ID:
        _within(prefix.field, number, MAX_ID)
    return prefix + "_" + _base32(number)  # formatting an enum takes twice as long


def parse_id(prefix: Prefix, text: str) -> int:
    return _number(prefix.field, _digits(prefix, text, _WIDTH))


def format_run_id(job_id: int, fire_at_us: int) -> str:
    if not 0 <= job_id <= MAX_ID:
        _within("job_id", job_id, MAX_ID)
    return f"run_{_base32(job_id)}{_fire_digits(fire_at_us)}"


def run_id_of(job_id: str, fire_at_us: int) -> str:
    """As `format_run_id`, of a job whose public id is known."""
    return f"run_{job_id[_PREFIX_LENGTH:]}{_fire_digits(fire_at_us)}"


def parse_run_id(text: str) -> RunKey:
    field = Prefix.RUN.field
    digits = _digits(Prefix.RUN, text, 2 * _WIDTH)
    key = RunKey(_number(field, digits[:_WIDTH]), _number(field, digits[_WIDTH:]))
    if key.fire_at_us > MAX_FIRE_AT_US:
        raise InvalidInput(field, "its fire time lies beyond the year 9999")
    return key


def format_token(lane_id: int, seq: int) -> str:
    if not (0 <= lane_id <= MAX_ID and 0 <= seq <= MAX_ID):
        _within("lane_id", lane_id, MAX_ID)
        _within("seq", seq, MAX_ID)
    return f"{lane_id}.{seq}"


def parse_token(text: str) -> FencingToken:
    match = _TOKEN.fullmatch(text)
    if match is None:
        raise InvalidInput("token", "must be two decimal numbers joined by a dot, as in 412.1781532000000001")
    token = FencingToken(int(match[1]), int(match[2]))
    if max(token) > MAX_ID:
        raise InvalidInput("token", f"its numbers must not exceed {MAX_ID}")
    return token


def _base32(number: int) -> str:
    # Two digits per lookup: a lease answers with thousands of run ids.
    return (
        _ALPHABET[number >> 60]
        + _PAIRS[number >> 50 & 1023]
        + _PAIRS[number >> 40 & 1023]
        + _PAIRS[number >> 30 & 1023]
        + _PAIRS[number >> 20 & 1023]
        + _PAIRS[number >> 10 & 1023]
        + _PAIRS[number & 1023]
    )


@functools.lru_cache(maxsize=1024)
def _fire_digits(fire_at_us: int) -> str:
    """Remembered: runs that are leased together mostly share their fire time."""
    _within("fire_at", fire_at_us, MAX_FIRE_AT_US)
    return _base32(fire_at_us)


def _digits(prefix: Prefix, text: str, width: int) -> str:
    head, body = text[:_PREFIX_LENGTH], text[_PREFIX_LENGTH:]
    if head != f"{prefix}_":
        raise InvalidInput(prefix.field, f"must start with {prefix}_")
    if len(body) != width:
        raise InvalidInput(prefix.field, f"must have {width} characters after {prefix}_, not {len(body)}")
    if _DIGITS.fullmatch(body) is None:
        raise InvalidInput(prefix.field, f"may only use the characters {_ALPHABET} after {prefix}_")
    return body


def _number(field: str, digits: str) -> int:
    number = int(digits.translate(_TO_INT_DIGITS), 32)
    if number > MAX_ID:
        raise InvalidInput(field, "is larger than any id")
    return number


def _within(field: str, number: int, most: int) -> None:
    if not 0 <= number <= most:
        raise InvalidInput(field, f"must be between 0 and {most}, not {number}")


def _mix(number: int) -> int:
    """SplitMix64's finaliser: every input bit sways every output bit."""
    mixed = (number + 0x9E3779B97F4A7C15) & _MASK_64
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK_64
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK_64
    return mixed ^ mixed >> 31
