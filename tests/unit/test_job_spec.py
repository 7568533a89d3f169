"""A job's fields: what is read of them, with which defaults, and what an edit makes of them."""

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from evertick.contract.job import JobSpec, job_fields
from evertick.contract.job_reading import patched, read_spec
from evertick.contract.target import HttpTarget, WorkerTarget
from evertick.domain.errors import InvalidFields
from evertick.domain.policies import Backoff, DstGap, MissedWindow, Priority

WORKER = {"type": "worker", "handler": "send_invoice"}
LEAST = {"schedule": "@daily", "target": WORKER}
DOCUMENTED = json.loads("""{
  "name": "send-weekly-report",
  "schedule": "0 9 * * 1",
  "timezone": "America/New_York",
  "target": {"type": "http", "url": "https://example.com/hooks/report", "method": "POST",
             "headers": {"X-Team": "growth"}},
  "payload": {"report_type": "weekly"},
  "idempotency_key_template": "report-{{week}}",
  "max_retries": 3,
  "retry_backoff": "exponential",
  "missed_window": "RUN_ONCE",
  "timeout_seconds": 120
}""")


def spec_to_fields(spec: JobSpec) -> dict[str, Any]:
    """Every field as JSON has it."""
    written: dict[str, Any] = msgspec.to_builtins({"name": spec.name, **job_fields(spec)})
    return written


def reads(**fields: Any) -> JobSpec:
    return read_spec({**LEAST, **fields})


def test_the_documented_example_is_read_as_written() -> None:
    assert read_spec(DOCUMENTED) == JobSpec(
        name="send-weekly-report",
        schedule="0 9 * * 1",
        timezone="America/New_York",
        target=HttpTarget("https://example.com/hooks/report", "POST", {"X-Team": "growth"}),
        payload={"report_type": "weekly"},
        idempotency_key_template="report-{{week}}",
        max_retries=3,
        retry_backoff=Backoff.EXPONENTIAL,
        missed_window=MissedWindow.RUN_ONCE,
        timeout_seconds=120,
    )


def test_every_field_that_is_not_given_has_the_documented_default() -> None:
    assert spec_to_fields(read_spec(LEAST)) == {
        "name": None,
        "schedule": "@daily",
        "timezone": "UTC",
        "dst_gap": "catch_up",
        "dst_overlap": "first",
        "start_at": None,
        "end_at": None,
        "target": {"type": "worker", "queue": "default", "handler": "send_invoice"},
        "payload": None,
        "idempotency_key_template": "{{job_id}}:{{fire_at_unix}}",
        "max_retries": 3,
        "retry_backoff": "exponential",
        "retry_delay_seconds": 10,
        "retry_max_delay_seconds": 3600,
        "timeout_seconds": 300,
        "missed_window": "RUN_ONCE",
        "misfire_grace_seconds": None,
        "max_missed": 100,
        "concurrent_policy": "SKIP",
        "max_concurrent": 1,
        "max_running": None,
        "concurrency_key": None,
        "ordering_key": None,
        "jitter_seconds": 0,
        "priority": "normal",
        "labels": {},
        "retain_seconds": 86400,
        "must_succeed_within": None,
        "alert_after_failures": None,
        "alert_if_late_seconds": None,
        "alert_if_running_seconds": None,
    }


def test_a_null_means_the_default() -> None:
    nothing = dict.fromkeys(set(spec_to_fields(read_spec(LEAST))) - {"schedule", "target"})
    assert read_spec({**LEAST, **nothing}) == read_spec(LEAST)


def test_the_longest_retry_delay_is_never_shorter_than_the_delay_unless_said_so() -> None:
    assert reads(retry_delay_seconds=7200).retry_max_delay_seconds == 7200
    assert reads(retry_delay_seconds=60).retry_max_delay_seconds == 3600


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2026-06-09T13:00:00Z", datetime(2026, 6, 9, 13, tzinfo=UTC)),
        ("2026-06-09t15:00:00.250+02:00", datetime(2026, 6, 9, 13, 0, 0, 250_000, tzinfo=UTC)),
        ("2026-06-09 13:00:00z", datetime(2026, 6, 9, 13, tzinfo=UTC)),
    ],
)
def test_a_window_is_written_as_rfc_3339_does_and_kept_in_utc(text: str, instant: datetime) -> None:
    found = reads(start_at=text).start_at
    assert found == instant
    assert found.tzinfo is UTC
    assert spec_to_fields(reads(start_at=text))["start_at"].endswith("Z")


def test_delays_may_have_fractions_and_whole_ones_are_whole() -> None:
    assert reads(jitter_seconds=0.5).jitter_seconds == 0.5
    assert repr(reads(jitter_seconds=30.0).jitter_seconds) == "30"
    assert repr(reads(timeout_seconds=30.0).timeout_seconds) == "30"


def test_an_enum_member_is_as_good_as_its_word() -> None:
    assert reads(dst_gap=DstGap.SKIP, priority="high").dst_gap is DstGap.SKIP
    assert reads(priority="high").priority is Priority.HIGH


def test_a_spec_gives_its_policies_as_the_core_wants_them() -> None:
    spec = reads(timeout_seconds=90, idempotency_key_template="{{date}}")
    assert spec.timeout.total_seconds() == 90
    assert spec.template.pieces == ("date",)


# Edits


def test_a_patch_replaces_what_it_names_and_keeps_the_rest() -> None:
    spec = read_spec(DOCUMENTED)
    edited = patched(spec, {"schedule": "@daily", "labels": {"a": "b"}})
    assert spec_to_fields(edited) == {**spec_to_fields(spec), "schedule": "@daily", "labels": {"a": "b"}}


def test_a_null_in_a_patch_resets_to_the_default() -> None:
    edited = patched(read_spec(DOCUMENTED), {"timeout_seconds": None, "payload": None, "timezone": None})
    assert (edited.timeout_seconds, edited.payload, edited.timezone) == (300, None, "UTC")


def test_a_patch_replaces_the_target_as_a_whole() -> None:
    assert patched(read_spec(DOCUMENTED), {"target": WORKER}).target == WorkerTarget(handler="send_invoice")
    moved = patched(read_spec(DOCUMENTED), {"target": {"type": "http", "url": "https://example.com"}})
    assert moved.target == HttpTarget("https://example.com")


@pytest.mark.parametrize("bad", [{"schedule": None}, {"target": None}, {"tiemzone": None}, {"max_retries": -1}])
def test_a_patch_has_the_faults_of_a_new_job(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidFields) as refused:
        patched(read_spec(LEAST), bad)
    with pytest.raises(InvalidFields) as refused_new:
        read_spec({**LEAST, **bad})
    assert refused.value.faults == refused_new.value.faults


def test_a_patch_that_is_no_object_is_refused() -> None:
    with pytest.raises(InvalidFields, match="must be an object, not an array"):
        patched(read_spec(LEAST), [])


def test_a_longest_delay_that_nobody_chose_follows_the_delay() -> None:
    assert patched(read_spec(LEAST), {"retry_delay_seconds": 7200}).retry_max_delay_seconds == 7200
    chosen = reads(retry_max_delay_seconds=5000)
    assert patched(chosen, {"retry_delay_seconds": 4000}).retry_max_delay_seconds == 5000
    with pytest.raises(InvalidFields, match="must be at least retry_delay_seconds"):
        patched(chosen, {"retry_delay_seconds": 7200})
    assert patched(reads(retry_delay_seconds=7200), {"retry_delay_seconds": None}).retry_max_delay_seconds == 3600
