"""What is wrong with a job's fields: every fault at once, each where it is and for what it is."""

import pickle
from typing import Any

import pytest

from bounded_work import MAX_CALLS, calls_at_most
from evertick.contract.job import JobSpec
from evertick.contract.job_reading import read_spec
from evertick.domain.errors import EvertickError, Fault, InvalidFields
from evertick.domain.job.faults import MAX_FAULTS

LEAST = {"schedule": "@daily", "target": {"type": "worker", "handler": "send_invoice"}}


NO_INSTANT = "must be an instant that exists, as RFC 3339 writes it, such as 2026-06-09T13:00:00Z"


def faults(fields: object) -> dict[str, str]:
    with pytest.raises(InvalidFields) as refused:
        read_spec(fields)
    return dict(refused.value.faults)


def fault(**fields: Any) -> tuple[str, str]:
    """The only fault of an otherwise usable job."""
    ((pointer, reason),) = faults({**LEAST, **fields}).items()
    return pointer, reason


def reads(**fields: Any) -> JobSpec:
    return read_spec({**LEAST, **fields})


def test_all_faults_are_reported_at_once_even_those_of_the_schedule() -> None:
    found = faults(
        {
            "name": " ",
            "schedule": "61 * * * *",
            "timezone": "Europe/Berlni",
            "target": {"type": "http", "url": "ftp://x", "headers": {"Host": "x"}},
            "timeout_seconds": 0,
            "retry": 3,
        }
    )
    assert set(found) == {
        "/name",
        "/schedule",
        "/timezone",
        "/target/url",
        "/target/headers/Host",
        "/timeout_seconds",
        "/retry",
    }
    assert "Europe/Berlin" in found["/timezone"]


def test_a_schedule_that_may_suit_the_job_is_not_blamed_for_other_faults() -> None:
    assert faults({**LEAST, "schedule": "0 0 30 H(2-3) *", "max_retries": -1}).keys() == {"/max_retries"}
    assert faults({**LEAST, "schedule": "CRON_TZ=Asia/Tokyo H 9 * * *", "max_retries": -1}).keys() == {"/max_retries"}


def test_the_error_lists_its_faults_survives_a_process_boundary_and_is_one_of_ours() -> None:
    error = InvalidFields([Fault("/name", "is bad"), Fault("", "is odd")])
    assert str(error) == "/name: is bad; is odd"
    copy = pickle.loads(pickle.dumps(error))
    assert copy.faults == error.faults
    assert isinstance(error, EvertickError)
    assert isinstance(error, ValueError)


@pytest.mark.parametrize("junk", [None, [], "job", 3, True])
def test_a_job_that_is_no_object_is_refused_as_a_whole(junk: object) -> None:
    assert list(faults(junk)) == [""]


def test_what_is_required_is_missed() -> None:
    assert faults({}) == {"/schedule": "is required", "/target": "is required"}
    assert faults({"schedule": None, "target": None}) == faults({})


def test_an_unknown_field_is_refused_with_the_nearest_known_one() -> None:
    assert fault(max_retry=3) == ("/max_retry", "is not a known field: did you mean 'max_retries'?")
    assert "did you mean 'timezone'?" in fault(TIMEZONE=1)[1]
    assert "known are schedule, timezone" in fault(zzz=None)[1]


def test_the_pointer_of_an_unknown_field_is_escaped_short_and_encodable() -> None:
    assert fault(**{"a/b~c": 1})[0] == "/a~1b~0c"
    assert fault(**{"\ud800": 1})[0] == "/?"
    assert len(fault(**{"x" * 1_000_000: 1})[0]) < 70


@pytest.mark.parametrize(
    "hostile",
    [
        {f"field{number}": 1 for number in range(100_000)},
        {**LEAST, "target": {"type": "worker", **{f"field{number}": 1 for number in range(100_000)}}},
        {**LEAST, "payload": [float("nan")] * 100_000},
    ],
    ids=["unknown fields", "unknown fields of the target", "impossible numbers"],
)
def test_hostile_input_gets_a_bounded_answer_for_bounded_work(hostile: object) -> None:
    with calls_at_most(10 * MAX_CALLS):
        assert len(faults(hostile)) == MAX_FAULTS


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "must not be blank"),
        ("  ", "must not be blank"),
        (" a", "must not begin or end with white space"),
        ("a\u00a0", "must not begin or end with white space"),
        ("a\nb", "must not contain line breaks or other control characters"),
        ("a\x9fb", "must not contain line breaks or other control characters"),
        ("a\0b", "contains a NUL character (\\u0000) or a lone surrogate, which PostgreSQL cannot store"),
        ("a\udfffb", "contains a NUL character (\\u0000) or a lone surrogate, which PostgreSQL cannot store"),
        ("a" * 256, "has at most 255 characters, not 256"),
        (7, "must be a string, not a number"),
    ],
)
def test_a_name_is_refused(name: object, reason: str) -> None:
    assert fault(name=name) == ("/name", reason)


@pytest.mark.parametrize("name", ["a", "a" * 255, "Größe 7 / täglich", "😀", "a.b:c"])
def test_a_name_is_any_visible_text(name: str) -> None:
    assert reads(name=name).name == name


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("max_retries", True, "must be a number, not a boolean"),
        ("max_retries", "3", "must be a number, not a string"),
        ("max_retries", 1.5, "must be a whole number"),
        ("max_retries", -1, "must be from 0 to 1000"),
        ("timeout_seconds", 0, "must be from 1 to 86400"),
        ("timeout_seconds", 86401, "must be from 1 to 86400"),
        ("max_missed", 0, "must be from 1 to 10000"),
        ("max_missed", 10001, "must be from 1 to 10000"),
        ("max_concurrent", 0, "must be from 1 to 10000"),
        ("retain_seconds", -1, "must be from 0 to 316224000"),
        ("jitter_seconds", -0.1, "must be from 0 to 31622400"),
        ("jitter_seconds", float("nan"), "must be finite"),
        ("misfire_grace_seconds", float("inf"), "must be finite"),
        ("misfire_grace_seconds", False, "must be a number, not a boolean"),
        ("retry_delay_seconds", 1e300, "must be from 0 to 31622400"),
        ("retry_max_delay_seconds", [], "must be a number, not an array"),
        ("dst_gap", "CATCH_UP", "must be one of catch_up, skip, shift"),
        ("dst_overlap", 1, "must be one of first, second, both"),
        ("missed_window", "run_once", "must be one of SKIP, RUN_ONCE, RUN_ALL"),
        ("concurrent_policy", {}, "must be one of SKIP, ALLOW, QUEUE, REPLACE"),
        ("retry_backoff", "", "must be one of fixed, linear, exponential"),
        ("priority", "urgent", "must be one of high, normal, low"),
        ("schedule", 5, "must be a string, not a number"),
        ("schedule", "x" * 8193, "has at most 8192 characters, not 8193"),
        ("timezone", {}, "must be a string, not an object"),
        ("start_at", 1781010000, "must be a string, not a number"),
        ("start_at", "2026-06-09T13:00:00", "needs a time zone: Z, or an offset such as +02:00"),
        (
            "start_at",
            "2026-02-30T00:00:00Z",
            NO_INSTANT,
        ),
        ("end_at", "0001-01-01T00:00:00+23:59", "lies outside of the years 4 to 9989"),
        ("end_at", "tomorrow", NO_INSTANT),
        ("end_at", "2026-06-09", NO_INSTANT),
        ("idempotency_key_template", "", "must have 1 to 255 characters, not 0"),
        ("idempotency_key_template", "{{wek}}", "has the unknown placeholder 'wek': did you mean week?"),
        ("target", "http", "must be an object, not a string"),
        ("labels", [], "must be an object, not an array"),
    ],
)
def test_a_value_is_refused_where_it_is_and_for_what_it_is(field: str, value: object, reason: str) -> None:
    assert fault(**{field: value}) == (f"/{field}", reason)


def test_a_window_ends_after_it_starts() -> None:
    at = "2026-06-09T13:00:00Z"
    assert fault(start_at=at, end_at=at) == ("/end_at", "must be later than start_at")


@pytest.mark.parametrize("name", ["start_at", "end_at"])
def test_one_end_of_a_window_without_a_zone_is_a_fault_of_that_end(name: str) -> None:
    window = {"start_at": "2026-06-09T13:00:00Z", "end_at": "2027-06-09T13:00:00Z"}
    pointer, reason = fault(**window | {name: "2026-12-09T13:00:00"})
    assert (pointer, reason.partition(":")[0]) == (f"/{name}", "needs a time zone")


def test_a_number_of_a_thousand_digits_is_refused_like_any_other() -> None:
    assert fault(max_retries=10**5000) == ("/max_retries", "must be from 0 to 1000")


def test_the_longest_retry_delay_is_at_least_the_delay() -> None:
    shorter = ("/retry_max_delay_seconds", "must be at least retry_delay_seconds")
    assert fault(retry_delay_seconds=60, retry_max_delay_seconds=59) == shorter
    assert fault(retry_max_delay_seconds=9) == shorter
