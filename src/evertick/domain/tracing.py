"""Trace contexts of runs, in the form of W3C's `traceparent`. Pure.

A run is one trace. Its id follows from the id of the run, and the id of the span of a firing from the run and the due
time. So the processes that fire, lease, deliver and record agree on them without telling each other. Only a run that
was asked for with a trace context belongs to that trace: the context is stored beside the request.
"""

import re
from typing import NamedTuple

from evertick.domain.stable_hash import delimited, hash_of, stable_int

TRACEPARENT = "traceparent"
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_VERSION = "00"
_INVALID_VERSION = "ff"
_SAMPLED = 1
_ODD_FACTOR = 0x9E3779B97F4A7C15
_MASK_64 = 2**64 - 1
_TRACE = delimited("trace")
_TRACE_IDS = 2**128 - 1


class TraceContext(NamedTuple):
    """A span of a trace, and whether the trace is recorded."""

    trace_id: int
    span_id: int
    is_sampled: bool

    def __str__(self) -> str:
        return f"{_VERSION}-{self.trace_id:032x}-{self.span_id:016x}-{_SAMPLED if self.is_sampled else 0:02x}"


class FiredRun(NamedTuple):
    """A run that a firing appended to its lane.

    `caller`: the stored context of the request for it. `author`: that of the request that wrote the job's version.
    """

    job_id: int
    fire_at_us: int
    due_us: int
    tenant_id: int
    kind: str
    caller: str | None
    author: str | None


def parse_traceparent(text: str) -> TraceContext | None:
    """The context in a header. None: it is not valid, and counts as missing."""
    match = _FORM.fullmatch(text.strip())
    if match is None or match[1] == _INVALID_VERSION or (match[1] == _VERSION and match[5]):
        return None
    trace_id, span_id = int(match[2], 16), int(match[3], 16)
    if not trace_id or not span_id:
        return None
    return TraceContext(trace_id, span_id, is_sampled=bool(int(match[4], 16) & _SAMPLED))


def trace_id_of(run_id: str) -> int:
    return hash_of(_TRACE + delimited(run_id)) % _TRACE_IDS + 1  # zero is not a valid id


def fire_span_id(run_id: str, due_us: int) -> int:
    """The span of the firing of an attempt: each has a due time of its own."""
    return stable_int(2**64 - 1, "fire", run_id, due_us) + 1


def attempt_traceparent(run_id: str, fencing_token: int) -> str:
    """The text of `attempt_context` for a run without a caller. Apart, because one is made for each attempt."""
    trace_id = trace_id_of(run_id)
    return f"00-{trace_id:032x}-{_attempt_span_id(trace_id, fencing_token):016x}-01"


def attempt_context(run_id: str, fencing_token: int, caller: TraceContext | None = None) -> TraceContext:
    """What an attempt hands on while nothing is traced here: one trace for a run, one span for each attempt.

    It counts as sampled: receivers that follow their caller's choice would otherwise trace no scheduled work at all.
    """
    trace_id = trace_id_of(run_id)
    span_id = _attempt_span_id(trace_id, fencing_token)
    if caller is not None:
        return caller._replace(span_id=span_id)
    return TraceContext(trace_id, span_id, is_sampled=True)


def _attempt_span_id(trace_id: int, fencing_token: int) -> int:
    """One hash for both ids. An odd factor gives different products for different tokens."""
    return (trace_id ^ fencing_token * _ODD_FACTOR) & _MASK_64 or 1
