"""Reads a job in one step, in C, when there is nothing wrong with it: bulk loads are made of such jobs.

What is read here would be read alike field by field. What is not is none the worse for it: it is looked at again, field
by field, which can tell what is wrong, and knows the rarer ways of writing things.
"""

import functools
from datetime import UTC, datetime

import msgspec

from evertick.domain.errors import InvalidInput
from evertick.domain.idempotency import DEFAULT_TEMPLATE
from evertick.domain.job.faults import Faults, Reader
from evertick.domain.job.headers import read_headers
from evertick.domain.job.payload import is_plain, read_labels
from evertick.domain.job.spec import DEFAULT_RETRY_MAX_DELAY_SECONDS, JobSpec, cached_template
from evertick.domain.job.target import WorkerTarget
from evertick.domain.job.target_fields import METHODS, read_handler, read_queue
from evertick.domain.job.url import fault_in_url
from evertick.domain.job.values import UNSTORABLE, read_instant

_KEPT = 4096
_MAX_KEPT_MEMBERS = 16


def read_at_once(fields: object) -> JobSpec | None:
    """The specification, or None when it takes a closer look."""
    try:
        spec = msgspec.convert(fields, JobSpec)
    except (msgspec.ValidationError, UnicodeEncodeError, RecursionError):
        return None
    return spec if _texts(spec) and _waits(spec) and _target(spec) and _rest(spec) and _window(spec, fields) else None


def _texts(spec: JobSpec) -> bool:
    # Printable texts have no control characters, no lone surrogates, and no white space but the plain one.
    name = spec.name
    if name is not None and not (name.isprintable() and name[0] != " " and name[-1] != " "):
        return False
    if not spec.schedule.isprintable() and UNSTORABLE.search(spec.schedule):
        return False
    return spec.timezone.isprintable()


def _waits(spec: JobSpec) -> bool:
    """Whether all lengths of time are whole seconds that keep their order; a longer delay moves the longest one."""
    delay, longest = spec.retry_delay_seconds, spec.retry_max_delay_seconds
    if type(delay) is float or type(longest) is float or type(spec.jitter_seconds) is float:
        return False
    if type(spec.misfire_grace_seconds) is float:
        return False
    return delay <= longest and delay <= DEFAULT_RETRY_MAX_DELAY_SECONDS


def _target(spec: JobSpec) -> bool:
    target = spec.target
    if isinstance(target, WorkerTarget):
        return _is_handler(target.queue, target.handler)
    if target.method not in METHODS or not _is_url(target.url):
        return False
    headers = target.headers
    return not headers or (len(headers) <= _MAX_KEPT_MEMBERS and _are_headers(tuple(headers.items())))


def _rest(spec: JobSpec) -> bool:
    template, labels = spec.idempotency_key_template, spec.labels
    if template != DEFAULT_TEMPLATE and not _is_template(template):
        return False
    if labels and (len(labels) > _MAX_KEPT_MEMBERS or not _are_labels(tuple(labels.items()))):
        return False
    return spec.payload is None or is_plain(spec.payload)


def _window(spec: JobSpec, fields: object) -> bool:
    """Whether start and end are texts that mean what was read, in their order; in UTC, as they are kept."""
    start_at, end_at = spec.start_at, spec.end_at
    if start_at is None and end_at is None:
        return True
    if not isinstance(fields, dict):
        return False
    are_instants = _is_instant(fields.get("start_at"), start_at) and _is_instant(fields.get("end_at"), end_at)
    return are_instants and (start_at is None or end_at is None or start_at < end_at)


def _is_instant(text: object, at: datetime | None) -> bool:
    if at is None:
        return True
    return at.tzinfo is UTC and isinstance(text, str) and _instant(text) == at


def _passes(reader: Reader, value: object) -> bool:
    faults = Faults()
    reader(value, "", faults)
    return not faults


# Jobs that come together have most of these in common.


@functools.lru_cache(maxsize=_KEPT)
def _is_handler(queue: str, handler: str) -> bool:
    return _passes(read_queue, queue) and _passes(read_handler, handler)


@functools.lru_cache(maxsize=_KEPT)
def _is_url(url: str) -> bool:
    return fault_in_url(url) is None


@functools.lru_cache(maxsize=_KEPT)
def _are_headers(items: tuple[tuple[str, str], ...]) -> bool:
    return _passes(read_headers, dict(items))


@functools.lru_cache(maxsize=_KEPT)
def _are_labels(items: tuple[tuple[str, str], ...]) -> bool:
    return _passes(read_labels, dict(items))


@functools.lru_cache(maxsize=_KEPT)
def _instant(text: str) -> datetime | None:
    return read_instant(text, "", Faults())


@functools.lru_cache(maxsize=_KEPT)
def _is_template(template: str) -> bool:
    try:
        cached_template(template)
    except InvalidInput:
        return False
    return template.isprintable()
