"""From a job's fields, as decoded JSON, to its specification. Every way of making and editing a job reads it here."""

from collections.abc import Mapping
from datetime import UTC
from typing import Any, cast

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from evertick.contract.broker_targets import BrokerTarget, check_templates
from evertick.contract.job import DEFAULT_RETRY_MAX_DELAY_SECONDS, JobSpec
from evertick.contract.reading import read_members, run_checks
from evertick.domain.errors import InvalidInput
from evertick.domain.gate import GateFields, render_key
from evertick.domain.job.faults import Faults
from evertick.domain.job.timing import parse_text
from evertick.domain.policies import DstGap, DstOverlap

_NOT_CONVERTED = (msgspec.ValidationError, UnicodeEncodeError, RecursionError)
_DELAY, _MAX_DELAY = "retry_delay_seconds", "retry_max_delay_seconds"
_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(JobSpec)}
_WAITS = (_DELAY, _MAX_DELAY, "misfire_grace_seconds", "jitter_seconds", "alert_if_late_seconds")


def read_spec(fields: object) -> JobSpec:
    """Read a job from its fields. A null counts as a field that is not there: it means the default.

    InvalidFields lists every fault. What a schedule's text means is left to `definition.define`, which knows the
    job's id and creation; but where there are faults to report, those of the text are among them.
    """
    faults = Faults()
    try:
        spec = msgspec.convert(fields, JobSpec)
    except _NOT_CONVERTED:
        values = read_members(fields, JobSpec, faults)
    else:
        given = cast("Mapping[str, object]", fields)
        run_checks(spec, given, faults)
        if not faults.found and _is_complete(spec):
            return spec
        values = {name: getattr(spec, name) for name in given if given[name] is not None}
    _check_together(values, faults)
    if faults:
        _add_text_faults(values, faults)
        faults.raise_any()
    return _completed(values)


def _is_complete(spec: JobSpec) -> bool:
    """Whether it is as it is kept, in any case: no fractions, no keys, no window, no broker, delays in order."""
    delay, longest = spec.retry_delay_seconds, spec.retry_max_delay_seconds
    if type(delay) is float or type(longest) is float or type(spec.jitter_seconds) is float:
        return False
    if spec.concurrency_key is not None or spec.ordering_key is not None or isinstance(spec.target, BrokerTarget):
        return False
    if type(spec.misfire_grace_seconds) is float or spec.start_at is not None or spec.end_at is not None:
        return False
    return delay <= longest and type(spec.alert_if_late_seconds) is not float


def _completed(values: dict[str, Any]) -> JobSpec:
    """Whole numbers are integers, instants are in UTC, and the longest delay is never shorter than the delay."""
    for name in _WAITS:
        value = values.get(name)
        if type(value) is float and value.is_integer():
            values[name] = int(value)
    for name in ("start_at", "end_at"):
        if values.get(name) is not None:
            values[name] = values[name].astimezone(UTC)
    if _MAX_DELAY not in values and _DELAY in values:
        values[_MAX_DELAY] = _default_max_delay(values[_DELAY])
    return JobSpec(**values)


def patched(spec: JobSpec, fields: object) -> JobSpec:
    """The specification after a PATCH: a given field replaces the whole old one, null resets it to its default.

    A longest retry delay that has its default follows the delay: its author never chose it.
    """
    if not isinstance(fields, Mapping):
        return read_spec(fields)  # which refuses it
    merged = msgspec.to_builtins(replace(spec, payload=UNSET)) | {"payload": spec.payload}
    if spec.retry_max_delay_seconds == _default_max_delay(spec.retry_delay_seconds):
        merged.pop(_MAX_DELAY, None)
    return read_spec({**merged, **fields})


def _default_max_delay(retry_delay_seconds: float) -> float:
    """An hour, or the delay itself where that is longer: a long delay alone must be a usable choice."""
    return max(DEFAULT_RETRY_MAX_DELAY_SECONDS, retry_delay_seconds)


def _check_together(values: Mapping[str, Any], faults: Faults) -> None:
    start_at, end_at = values.get("start_at"), values.get("end_at")
    if start_at and end_at and start_at >= end_at:
        faults.add("/end_at", "must be later than start_at")
    delay, longest = values.get(_DELAY), values.get(_MAX_DELAY)
    if longest is not None and longest < (_DEFAULTS[_DELAY] if delay is None else delay):
        faults.add(f"/{_MAX_DELAY}", f"must be at least {_DELAY}")
    _check_gate(GateFields(*(values.get(name) for name in GateFields._fields)), values, faults)
    if not faults and not _gets_payloads_from_triggers(values):
        try:
            check_templates(values.get("target"), values.get("payload"))
        except InvalidInput as refused:
            faults.add(f"/{refused.field}", refused.reason)


def _check_gate(gate: GateFields, values: Mapping[str, Any], faults: Faults) -> None:
    if gate.ordering_key is not None and gate.concurrency_key is not None:
        faults.add("/ordering_key", "cannot stand beside concurrency_key: a job has one of them")
    elif gate.ordering_key is not None and gate.max_running is not None:
        faults.add("/max_running", "cannot stand beside ordering_key, which lets one run at a time be at work")
    elif gate.key and not faults and not _gets_payloads_from_triggers(values):
        try:
            render_key(*gate.key, values.get("payload"))
        except InvalidInput as refused:
            faults.add(f"/{refused.field}", refused.reason)


def _gets_payloads_from_triggers(values: Mapping[str, Any]) -> bool:
    """Whether only triggers run it, and give each run its payload."""
    return values.get("payload") is None and values.get("schedule") == "manual"


def _add_text_faults(values: Mapping[str, Any], faults: Faults) -> None:
    schedule = values.get("schedule")
    if schedule is None:
        return
    gap, overlap = values.get("dst_gap") or DstGap.CATCH_UP, values.get("dst_overlap") or DstOverlap.FIRST
    for fault in parse_text(schedule, values.get("timezone") or _DEFAULTS["timezone"], gap, overlap).faults:
        faults.add(*fault)
