"""Between a job's fields, as decoded JSON, and its specification. All ways of making and editing a job come by here."""

from collections.abc import Mapping
from typing import Any

from evertick.domain.errors import InvalidInput
from evertick.domain.idempotency import TEMPLATE_MAX_LENGTH
from evertick.domain.job.faults import Faults, Reader, kind_of
from evertick.domain.job.limits import (
    LONGEST_RETENTION_S,
    LONGEST_TIMEOUT_S,
    LONGEST_WAIT_S,
    MAX_CONCURRENT,
    MAX_RETRIES,
    SHORTEST_TIMEOUT_S,
    ZONE_NAME_MAX_LENGTH,
)
from evertick.domain.job.payload import read_labels, read_payload
from evertick.domain.job.quick import read_at_once
from evertick.domain.job.spec import (
    DEFAULT_RETRY_DELAY_SECONDS,
    DEFAULT_TIMEZONE,
    JobSpec,
    cached_template,
    default_retry_max_delay,
)
from evertick.domain.job.target import HttpTarget, WorkerTarget
from evertick.domain.job.target_fields import read_target
from evertick.domain.job.timing import text_faults
from evertick.domain.job.values import one_of, read_instant, read_name, seconds, text, whole_number, write_instant
from evertick.domain.policies import Backoff, ConcurrentPolicy, DstGap, DstOverlap, MissedWindow, Priority
from evertick.domain.rule import MAX_MISSED
from evertick.domain.schedule.rrule.text import MAX_CHARACTERS

_read_text = text(TEMPLATE_MAX_LENGTH)


def _read_template(value: object, at: str, faults: Faults) -> str | None:
    template: str | None = _read_text(value, at, faults)
    if template is not None:
        try:
            cached_template(template)
        except InvalidInput as refused:
            faults.add(at, refused.reason)
    return template


_READERS: dict[str, Reader] = {
    "name": read_name,
    "schedule": text(MAX_CHARACTERS),
    "timezone": text(ZONE_NAME_MAX_LENGTH),
    "dst_gap": one_of(DstGap),
    "dst_overlap": one_of(DstOverlap),
    "start_at": read_instant,
    "end_at": read_instant,
    "target": read_target,
    "payload": read_payload,
    "idempotency_key_template": _read_template,
    "max_retries": whole_number(0, MAX_RETRIES),
    "retry_backoff": one_of(Backoff),
    "retry_delay_seconds": seconds(LONGEST_WAIT_S),
    "retry_max_delay_seconds": seconds(LONGEST_WAIT_S),
    "timeout_seconds": whole_number(SHORTEST_TIMEOUT_S, LONGEST_TIMEOUT_S),
    "missed_window": one_of(MissedWindow),
    "misfire_grace_seconds": seconds(LONGEST_WAIT_S),
    "max_missed": whole_number(1, MAX_MISSED),
    "concurrent_policy": one_of(ConcurrentPolicy),
    "max_concurrent": whole_number(1, MAX_CONCURRENT),
    "jitter_seconds": seconds(LONGEST_WAIT_S),
    "priority": one_of(Priority),
    "labels": read_labels,
    "retain_seconds": whole_number(0, LONGEST_RETENTION_S),
}
_REQUIRED = ("schedule", "target")


def read_spec(fields: object) -> JobSpec:
    """Read a job from its fields. A null is as good as a field that is not there: the default holds.

    InvalidFields lists every fault. What a schedule's text means is left to `definition.define`, which knows the
    job's id and creation; but where there are faults to report, those of the text are among them.
    """
    at_once = read_at_once(fields)
    return _read_with_faults(fields) if at_once is None else at_once


def _read_with_faults(fields: object) -> JobSpec:
    faults = Faults()
    values = _read_values(fields, faults)
    for name in _REQUIRED:
        if name not in values:
            faults.add(f"/{name}", "is required")
    _check_together(values, faults)
    if faults:
        _add_text_faults(values, faults)
        faults.raise_any()
    if "retry_max_delay_seconds" not in values and "retry_delay_seconds" in values:
        values["retry_max_delay_seconds"] = default_retry_max_delay(values["retry_delay_seconds"])
    return JobSpec(**values)


def spec_to_fields(spec: JobSpec) -> dict[str, Any]:
    """Every field with its value, ready for JSON. `read_spec` makes the same specification of them."""
    return {
        "name": spec.name,
        "schedule": spec.schedule,
        "timezone": spec.timezone,
        "dst_gap": str(spec.dst_gap),
        "dst_overlap": str(spec.dst_overlap),
        "start_at": write_instant(spec.start_at),
        "end_at": write_instant(spec.end_at),
        "target": spec.target.to_fields(),
        "payload": spec.payload,
        "idempotency_key_template": spec.idempotency_key_template,
        "max_retries": spec.max_retries,
        "retry_backoff": str(spec.retry_backoff),
        "retry_delay_seconds": spec.retry_delay_seconds,
        "retry_max_delay_seconds": spec.retry_max_delay_seconds,
        "timeout_seconds": spec.timeout_seconds,
        "missed_window": str(spec.missed_window),
        "misfire_grace_seconds": spec.misfire_grace_seconds,
        "max_missed": spec.max_missed,
        "concurrent_policy": str(spec.concurrent_policy),
        "max_concurrent": spec.max_concurrent,
        "jitter_seconds": spec.jitter_seconds,
        "priority": str(spec.priority),
        "labels": dict(spec.labels),
        "retain_seconds": spec.retain_seconds,
    }


def with_defaults(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that were stored without their defaults, whole again."""
    target = fields["target"]
    plain = _PLAIN[target["type"]]
    return {**spec_to_fields(plain), **fields, "target": {**plain.target.to_fields(), **target}}


_PLAIN = {
    "http": JobSpec(schedule="manual", target=HttpTarget(url="")),
    "worker": JobSpec(schedule="manual", target=WorkerTarget(handler="")),
}


def patched(spec: JobSpec, fields: object) -> JobSpec:
    """The specification after a PATCH: a given field replaces the whole old one, null resets it to its default.

    A longest retry delay that stands at its default follows the delay: its author never chose it.
    """
    if not isinstance(fields, Mapping):
        return read_spec(fields)  # which refuses it
    merged = spec_to_fields(spec)
    if spec.retry_max_delay_seconds == default_retry_max_delay(spec.retry_delay_seconds):
        del merged["retry_max_delay_seconds"]
    return read_spec({**merged, **fields})


def _read_values(fields: object, faults: Faults) -> dict[str, Any]:
    """The given fields, read; one that cannot be used is None."""
    values: dict[str, Any] = {}
    if not isinstance(fields, Mapping):
        faults.add("", f"must be an object, not {kind_of(fields)}")
        faults.raise_any()
    assert isinstance(fields, Mapping)
    for name, value in fields.items():
        reader = _READERS.get(name)
        if reader is None:
            if faults.full:
                break
            faults.add_unknown("", name, _READERS)
        elif value is not None:
            values[name] = reader(value, f"/{name}", faults)
    return values


def _check_together(values: Mapping[str, Any], faults: Faults) -> None:
    start_at, end_at = values.get("start_at"), values.get("end_at")
    if start_at and end_at and start_at >= end_at:
        faults.add("/end_at", "must be later than start_at")
    delay, longest = values.get("retry_delay_seconds"), values.get("retry_max_delay_seconds")
    if longest is not None and longest < (DEFAULT_RETRY_DELAY_SECONDS if delay is None else delay):
        faults.add("/retry_max_delay_seconds", "must be at least retry_delay_seconds")


def _add_text_faults(values: Mapping[str, Any], faults: Faults) -> None:
    schedule = values.get("schedule")
    if schedule is None:
        return
    gap, overlap = values.get("dst_gap") or DstGap.CATCH_UP, values.get("dst_overlap") or DstOverlap.FIRST
    for fault in text_faults(schedule, values.get("timezone") or DEFAULT_TIMEZONE, gap, overlap):
        faults.add(*fault)
