"""Whatever a job is made of: reading and writing agree, an edit is a merge, junk is only ever refused, and what is
shared between jobs never changes what one of them means.
"""

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import event, example, given, settings, strategies as st
from msgspec.structs import replace

from evertick.contract.job import JobSpec, job_fields, timing_of
from evertick.contract.job_reading import patched, read_spec
from evertick.domain.errors import Fault, InvalidFields
from evertick.domain.ids import Prefix, format_id
from evertick.domain.job.definition import Definition, define
from evertick.domain.job.timing import resolve_alone
from evertick.domain.policies import Backoff, ConcurrentPolicy, DstGap, DstOverlap, MissedWindow, Priority
from evertick.domain.schedule.spec import Once
from evertick.usecases.jobs.rows import read_stored, write_spec
from strategies import PATIENT, gaps, instants, overlaps, texts, zone_names

TARGET = {"type": "worker", "handler": "h"}

storable = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
visible = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=20)
payloads = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | storable,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(storable, inner, max_size=3),
    max_leaves=12,
)
seconds = st.integers(0, 31_622_400) | st.floats(0, 31_622_400)
http_targets = st.fixed_dictionaries(
    {"type": st.just("http"), "url": st.sampled_from(["http://a", "https://example.com:8443/x?y=%20"])},
    optional={
        "method": st.sampled_from(["GET", "PUT"]),
        "headers": st.dictionaries(st.sampled_from(["X-A", "X-B"]), st.from_regex(r"[!-~]{0,9}", fullmatch=True)),
    },
)
worker_targets = st.fixed_dictionaries(
    {"type": st.just("worker"), "handler": visible},
    optional={"queue": st.from_regex(r"q[a-z0-9._-]{0,62}", fullmatch=True)},
)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "name": visible,
    "timezone": zone_names,
    "dst_gap": st.sampled_from(DstGap).map(str),
    "dst_overlap": st.sampled_from(DstOverlap).map(str),
    "start_at": instants().map(datetime.isoformat),
    "end_at": instants().map(lambda at: (at + timedelta(days=60_000)).isoformat()),
    "payload": payloads,
    "idempotency_key_template": st.sampled_from(["{{name}}-{{week}}", "fixed", "{{ date }}:{{job_id}}"]),
    "max_retries": st.integers(0, 1000),
    "retry_backoff": st.sampled_from(Backoff).map(str),
    "retry_delay_seconds": st.integers(0, 5000) | st.floats(0, 5000),
    # Never its default: that one follows the delay when a patch moves it.
    "retry_max_delay_seconds": st.integers(5001, 31_622_400),
    "timeout_seconds": st.integers(1, 86_400),
    "missed_window": st.sampled_from(MissedWindow).map(str),
    "misfire_grace_seconds": seconds,
    "max_missed": st.integers(1, 10_000),
    "concurrent_policy": st.sampled_from(ConcurrentPolicy).map(str),
    "max_concurrent": st.integers(1, 10_000),
    "jitter_seconds": seconds,
    "priority": st.sampled_from(Priority).map(str),
    "labels": st.dictionaries(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}", fullmatch=True), storable, max_size=4),
    "retain_seconds": st.integers(0, 10**8),
}
documents = st.fixed_dictionaries({"schedule": texts, "target": http_targets | worker_targets}, optional=FIELDS)
patches = st.fixed_dictionaries(
    {}, optional={name: st.none() | values for name, values in FIELDS.items()} | {"schedule": texts}
)

any_text = st.text(st.characters(), max_size=12)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | any_text | st.just(10**4000)
junk = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4), max_leaves=12
)
http_junk = st.dictionaries(
    st.sampled_from(["type", "url", "method", "headers"]), junk | st.sampled_from(["http", "http://[", "https://a:b@c"])
)
field_names = st.sampled_from(["schedule", "target", *FIELDS]) | any_text
junk_documents = st.dictionaries(field_names, junk | http_junk | st.sampled_from(["H/0 * * * *", "RRULE:", "in"]))


def spec_to_fields(spec: JobSpec) -> dict[str, Any]:
    """Every field as JSON has it."""
    fields = {"name": spec.name, **job_fields(spec), "payload": None}
    return {**msgspec.to_builtins(fields), "payload": spec.payload}


@PATIENT
@given(documents)
def test_a_job_reads_back_from_what_it_is_written_as(fields: dict[str, Any]) -> None:
    spec = read_spec(fields)
    written = json.loads(json.dumps(spec_to_fields(spec)))
    assert read_spec(written) == spec
    assert spec_to_fields(read_spec(written)) == written


@PATIENT
@given(documents)
def test_what_is_stored_without_its_defaults_is_shown_with_them(fields: dict[str, Any]) -> None:
    spec = read_spec(fields)
    shown = spec_to_fields(spec)
    assert spec_to_fields(read_stored(write_spec(spec))) | {"payload": spec.payload} == shown
    assert read_spec(json.loads(write_spec(spec))) == replace(spec, payload=None)


@PATIENT
@given(documents, patches)
def test_a_patch_is_a_merge_of_what_was_given(fields: dict[str, Any], patch: dict[str, Any]) -> None:
    assert patched(read_spec(fields), patch) == read_spec({**fields, **patch})


@PATIENT
@given(junk | junk_documents)
def test_junk_is_refused_with_faults_that_can_be_answered(fields: object) -> None:
    faults: tuple[Fault, ...] = (Fault("", "none at all"),)
    try:
        read_spec(fields)
    except InvalidFields as refused:
        faults = refused.faults
    assert json.dumps(faults, ensure_ascii=False).encode()
    assert faults
    assert all(fault.reason and fault.pointer[:1] in {"", "/"} for fault in faults)


# Few fields at a time: with all of them, one is always of a kind that is not converted at once.
few = st.sets(st.sampled_from(sorted(FIELDS)), max_size=2).flatmap(
    lambda names: st.fixed_dictionaries(
        {"schedule": texts, "target": http_targets | worker_targets | http_junk}
        | {name: FIELDS[name] | junk for name in names}
    )
)


@settings(PATIENT, max_examples=150)
@given(few)
@example({"schedule": "@daily", "target": TARGET, "payload": [10**1000]})
@example({"schedule": "@daily", "target": TARGET, "payload": {1: 2}})
@example({"schedule": "@daily", "target": TARGET, "payload": ["\0"]})
@example({"schedule": "@daily", "target": TARGET, "payload": json.loads("[" * 65 + "]" * 65)})
@example({"schedule": "@daily", "target": TARGET, "payload": "x" * 65_535})
@example({"schedule": "@daily", "target": TARGET, "name": " a"})
@example({"schedule": "@daily", "target": TARGET, "retry_delay_seconds": 4000})
@example({"schedule": "@daily", "target": TARGET, "retry_delay_seconds": 20, "retry_max_delay_seconds": 10})
@example({"schedule": "@daily", "target": TARGET, "misfire_grace_seconds": 5.0})
@example({"schedule": "@daily", "target": TARGET, "start_at": "2026-01-01T00:00:00", "end_at": "2027-01-01T00:00:00Z"})
@example({"schedule": "@daily", "target": TARGET, "start_at": "2026-01-01T00:00:00Z", "end_at": "2027-01-01T00:00:00"})
@example({"schedule": "@daily", "target": TARGET, "start_at": "2026-01-01T00:00:00Z", "end_at": "2025-01-01T00:00:00Z"})
@example({"schedule": "@daily", "target": TARGET, "start_at": "2026-01-01 00:00:00.1234567Z"})
@example({"schedule": "@daily", "target": {"type": "worker", "handler": "h", "queue": "http"}})
def test_a_null_for_a_default_changes_nothing_though_the_job_is_then_read_member_by_member(
    fields: dict[str, Any],
) -> None:
    unnamed = next(name for name in FIELDS if name not in fields)
    try:
        spec = read_spec(fields)
    except InvalidFields as refused:
        event("refused")
        with pytest.raises(InvalidFields) as refused_again:
            read_spec({**fields, unnamed: None})
        assert set(refused_again.value.faults) == set(refused.faults)  # noqa: PT017 - both ways refuse alike
    else:
        alone = read_spec({**fields, unnamed: None})
        assert spec == alone
        # Equal numbers may be written in two ways.
        assert json.dumps(spec_to_fields(spec)) == json.dumps(spec_to_fields(alone))


@PATIENT
@given(documents, st.sampled_from(["target", *FIELDS]), junk)
def test_one_field_of_junk_is_kept_or_blamed_alone(fields: dict[str, Any], name: str, value: object) -> None:
    fields = {**fields, name: value}
    try:
        written = spec_to_fields(read_spec(fields))
    except InvalidFields as refused:
        blamed = {fault.pointer.split("/")[1] for fault in refused.faults}
        # The text of a schedule may never fire; that is found only where there is another fault to report.
        # What is too large beside another field is told of the other one.
        other = {"retry_delay_seconds": "retry_max_delay_seconds", "start_at": "end_at"}.get(name, name)
        assert name in blamed or other in blamed
        assert blamed <= {name, other, "schedule", "timezone"}
    else:
        assert value is None or name == "target" or written[name] == value


def afresh(fields: dict[str, Any], job_id: int, created_at: datetime, now: datetime) -> Definition:
    """The definition without anything shared: the schedule is made for this job alone."""
    resolved = resolve_alone(timing_of(read_spec(fields)), format_id(Prefix.JOB, job_id), created_at)
    spec = resolved.schedule.spec
    fire_at = resolved.schedule.next(datetime.min.replace(tzinfo=now.tzinfo, year=4) if isinstance(spec, Once) else now)
    return Definition(resolved.rule, resolved.rule.canonical(), resolved.rule.digest(), fire_at, fire_at)


delays = st.builds("in {} {}".format, st.integers(0, 400), st.sampled_from(["s", "h", "hours", "d"])) | st.just("now")

one_offs = st.builds(
    lambda at, hours, end: at.astimezone(timezone(timedelta(hours=hours))).isoformat().replace("+00:00", end),
    instants(),
    st.integers(-12, 14),
    st.sampled_from(["Z", "+00:00", "z", ""]),
) | st.sampled_from(["2027-02-30T00:00:00Z", "2027-06-01T24:00:00Z", "2027-06-01T10:00:00+24:00"])


@PATIENT
@given(
    texts | delays | one_offs | st.just("manual"),
    zone_names,
    gaps,
    overlaps,
    st.lists(st.tuples(st.integers(0, 2**40), instants(), st.timedeltas(timedelta(0), timedelta(days=2))), max_size=4),
)
def test_what_jobs_share_changes_nothing_for_any_of_them(
    text: str, zone: str, gap: str, overlap: str, jobs: list[tuple[int, datetime, timedelta]]
) -> None:
    fields = {"schedule": text, "timezone": zone, "dst_gap": gap, "dst_overlap": overlap, "target": TARGET}
    for job_id, created_at, age in jobs:
        now = created_at + age
        try:
            found = define(timing_of(read_spec(fields)), job_id, created_at, now)
        except InvalidFields as refused:
            assert all(fault.pointer == "/schedule" for fault in refused.faults)  # noqa: PT017 - any zone is known
            continue
        assert found == afresh(fields, job_id, created_at, now)
