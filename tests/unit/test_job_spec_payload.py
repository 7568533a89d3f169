"""Payloads and labels: what PostgreSQL and JSON can hold is kept unchanged, all else is refused."""

from typing import Any

import pytest

from evertick.contract.job import JobSpec
from evertick.contract.job_reading import read_spec
from evertick.domain.errors import InvalidFields

LEAST = {"schedule": "@daily", "target": {"type": "worker", "handler": "send_invoice"}}


def fault(**fields: Any) -> tuple[str, str]:
    """The only fault of an otherwise usable job."""
    with pytest.raises(InvalidFields) as refused:
        read_spec({**LEAST, **fields})
    ((pointer, reason),) = refused.value.faults
    return pointer, reason


def reads(**fields: Any) -> JobSpec:
    return read_spec({**LEAST, **fields})


def test_a_payload_is_any_json_unchanged() -> None:
    payload = {"a": [1, 2.5, None, True, "ü\n\\u0000"], "": {}, "big": 10**999}
    assert reads(payload=payload).payload == payload
    wide = [{"a": 1, "b": [2]}] * 100
    assert reads(payload=wide).payload == wide
    assert reads(payload="x" * 65_534).payload == "x" * 65_534


def test_a_payload_is_measured_as_compact_utf_8() -> None:
    assert fault(payload="x" * 65_535) == ("/payload", "has at most 65536 bytes as compact JSON, not 65537")
    assert fault(payload="ü" * 32_768)[0] == "/payload"
    assert reads(payload=["ü" * 16_000, [1, 2]]).payload


@pytest.mark.parametrize(
    ("payload", "pointer", "part"),
    [
        ({"a": ["\0"]}, "/payload/a/0", "NUL"),
        ({"a": [[], {}], "b": {"c": 1, "d": "\0"}}, "/payload/b/d", "NUL"),
        ({"a\0": 1}, "/payload/a\0", "its name contains a NUL"),
        (["\ud800"], "/payload/0", "surrogate"),
        ({"x/y": float("nan")}, "/payload/x~1y", "NaN"),
        ([float("-inf")], "/payload/0", "infinite"),
        ([-(10**1000)], "/payload/0", "more than 1000 digits"),
        ({1: 2}, "/payload/1", "its name is not a string"),
        ([{1}], "/payload/0", "a Python set"),
    ],
)
def test_a_payload_that_postgres_or_json_cannot_hold_is_refused(payload: object, pointer: str, part: str) -> None:
    found, reason = fault(payload=payload)
    assert found == pointer
    assert part in reason


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_a_payload_is_nested_64_levels_at_most() -> None:
    assert reads(payload=nested(64)).payload == nested(64)
    assert fault(payload=nested(65)) == ("/payload" + "/0" * 64, "is nested more than 64 levels deep")
    assert fault(payload=nested(50_000))[0] == "/payload" + "/0" * 64
    endless: list[Any] = []
    endless.append(endless)
    assert fault(payload=endless)[1] == "is nested more than 64 levels deep"


def test_labels_are_short_texts_under_plain_names() -> None:
    most = {str(number): "" for number in range(64)}
    assert reads(labels=most).labels == most
    labels = {"team": "", "app.example.com/tier": "a b ü", "9": "x" * 255, "k" * 63: "v"}
    assert reads(labels=labels).labels == labels


@pytest.mark.parametrize(
    ("labels", "pointer", "part"),
    [
        ({"": "a"}, "/labels/", "1 to 63 characters"),
        ({"-a": "a"}, "/labels/-a", "1 to 63 characters"),
        ({"a b": "a"}, "/labels/a b", "1 to 63 characters"),
        ({"a\n": "a"}, "/labels/a\n", "1 to 63 characters"),
        ({"k" * 64: "a"}, "/labels/" + "k" * 60 + "…", "1 to 63 characters"),
        ({"a": 1}, "/labels/a", "must be a string, not a number"),
        ({"a": None}, "/labels/a", "must be a string, not null"),
        ({"a": "x" * 256}, "/labels/a", "has at most 255 characters, not 256"),
        ({"a": "\0"}, "/labels/a", "NUL"),
        ({str(number): "" for number in range(65)}, "/labels", "has at most 64 labels, not 65"),
    ],
)
def test_labels_are_refused(labels: object, pointer: str, part: str) -> None:
    found, reason = fault(labels=labels)
    assert found == pointer
    assert part in reason
