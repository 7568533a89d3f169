"""What is wrong with a body or a query is said in the words of the API, not in types and regular expressions."""

from typing import Annotated, Any

import msgspec
import pytest

from evertick.api.decoding import decode, decode_document, parse_query
from evertick.api.problems import HttpProblem, Kind
from evertick.contract.access import KeyRequest
from evertick.contract.connections import read_connection
from evertick.contract.events import EventStreamRequest
from evertick.contract.jobs import JobsQuery, ResumeRequest
from evertick.contract.runs import ReplayRequest, RunsQuery
from evertick.contract.workers import HeartbeatRequest, LeaseRequest, OutcomesRequest
from evertick.domain.errors import InvalidFields

TOKEN = "412.1781532000000001"
NO_INSTANT = "must be an instant that exists, as RFC 3339 writes it, such as 2026-06-09T13:00:00Z"
NO_TOKEN = "must be the token of an attempt, such as 412.1781532000000001"
NO_WORKER = "must be 1 to 128 characters of A-Z, a-z, 0-9, '.', '_', ':', '@' and '-'"


def outcome(**fields: Any) -> dict[str, Any]:
    return {"worker_id": "w1", "outcomes": [{"token": TOKEN, "result": "success"} | fields]}


@pytest.mark.parametrize(
    ("kind", "body", "pointer", "reason"),
    [
        (LeaseRequest, [], "", "must be an object, not an array"),
        (LeaseRequest, {}, "/worker_id", "is required"),
        (LeaseRequest, {"worker_id": None}, "/worker_id", "must be a string, not null"),
        (LeaseRequest, {"worker_id": ""}, "/worker_id", NO_WORKER),
        (LeaseRequest, {"worker_id": "w", "max": 0}, "/max", "must be from 1 to 1000"),
        (LeaseRequest, {"worker_id": "w", "max": "5"}, "/max", "must be a whole number, not a string"),
        (LeaseRequest, {"worker_id": "w", "max": True}, "/max", "must be a whole number, not a boolean"),
        (LeaseRequest, {"worker_id": "w", "max": 1.5}, "/max", "must be a whole number"),
        (LeaseRequest, {"worker_id": "w", "wait_seconds": 31}, "/wait_seconds", "must be from 0 to 30"),
        (LeaseRequest, {"worker_id": "w", "wait_seconds": "1"}, "/wait_seconds", "must be a number, not a string"),
        (LeaseRequest, {"worker_id": "w", "handlers": []}, "/handlers", "must not be empty"),
        (LeaseRequest, {"worker_id": "w", "handlers": "h"}, "/handlers", "must be an array, not a string"),
        (LeaseRequest, {"worker_id": "w", "handlers": ["h", 1]}, "/handlers/1", "must be a string, not a number"),
        (
            LeaseRequest,
            {"worker_id": "w", "wait_second": 5},
            "/wait_second",
            "is not a known field: did you mean 'wait_seconds'?",
        ),
        (
            LeaseRequest,
            {"worker_id": "w", "foo": 5},
            "/foo",
            "is not a known field: known are worker_id, max, wait_seconds, handlers",
        ),
        (HeartbeatRequest, {"tokens": ["x"]}, "/tokens/0", NO_TOKEN),
        (HeartbeatRequest, {"progress": {TOKEN: 5}}, "/progress", "must be a string, not a number"),
        (HeartbeatRequest, {"progress": {"x": "half"}}, "/progress", f"has a name that is wrong: it {NO_TOKEN}"),
        (
            OutcomesRequest,
            outcome(result="ok"),
            "/outcomes/0/result",
            "must be one of success, failed, timed_out, deferred",
        ),
        (OutcomesRequest, outcome(retryable="no"), "/outcomes/0/retryable", "must be true or false, not a string"),
        (OutcomesRequest, outcome(started_at="x"), "/outcomes/0/started_at", NO_INSTANT),
        (
            OutcomesRequest,
            outcome(started_at="2026-01-01T00:00:00"),
            "/outcomes/0/started_at",
            "needs a time zone: Z, or an offset such as +02:00",
        ),
        (OutcomesRequest, outcome(eror="x"), "/outcomes/0/eror", "is not a known field: did you mean 'error'?"),
        (ResumeRequest, {"missed": "all"}, "/missed", "must be one of skip, run_once, run_all"),
        (ResumeRequest, {"missed": "all - at `$.run_id`"}, "/missed", "must be one of skip, run_once, run_all"),
        (
            EventStreamRequest,
            {"sink": {"type": "x" * 100_000}},
            "/sink/type",
            "must be one of http, kafka, rabbitmq, redis_stream, nats, sqs",
        ),
        (EventStreamRequest, {"sink": {"type": None}}, "/sink/type", "must be a string, not null"),
        (EventStreamRequest, {"sink": {"type": ["http"]}}, "/sink/type", "must be a string, not an array"),
        (KeyRequest, {"role": "king"}, "/role", "must be one of viewer, operator, editor, admin, worker, app"),
        (ReplayRequest, {"rate_per_second": 0}, "/rate_per_second", "must be from 0.01 to 1000"),
        (ReplayRequest, {"filter": {"label": "x"}}, "/filter/label", "must be a name and a value, such as team:growth"),
        (
            ReplayRequest,
            {"filter": {"job_id": "7"}},
            "/filter/job_id",
            "must be the id of a job, which begins with job_",
        ),
    ],
)
def test_a_fault_of_a_body_is_said_in_words_of_json(
    kind: type[msgspec.Struct], body: object, pointer: str, reason: str
) -> None:
    with pytest.raises(HttpProblem) as refused:
        decode_document(msgspec.json.encode(body), kind)
    assert [tuple(fault) for fault in refused.value.faults] == [(pointer, reason)]


@pytest.mark.parametrize(
    ("kind", "query", "pointer", "reason"),
    [
        (JobsQuery, b"limit=0", "/limit", "must be from 1 to 200"),
        (JobsQuery, b"limit=201", "/limit", "must be from 1 to 200"),
        (JobsQuery, b"limit=many", "/limit", "must be a whole number"),
        (JobsQuery, b"limit=", "/limit", "must be a whole number"),
        (JobsQuery, b"status=foo", "/status", "must be one of active, paused, finished"),
        (JobsQuery, b"label=foo", "/label", "must be a name and a value, such as team:growth"),
        (
            JobsQuery,
            b"name_prefix=%00",
            "/name_prefix",
            "contains a NUL character (\\u0000), which PostgreSQL cannot store",
        ),
        (
            RunsQuery,
            b"status=skipped",
            "/status",
            "must be one of pending, running, retrying, success, dead, cancelled",
        ),
        (RunsQuery, b"from=2026-01-01", "/from", NO_INSTANT),
        (RunsQuery, b"cursor=job_0000000000m01", "/cursor", "is none that an earlier page gave"),
    ],
)
def test_a_fault_of_a_query_is_said_in_words(
    kind: type[msgspec.Struct], query: bytes, pointer: str, reason: str
) -> None:
    with pytest.raises(HttpProblem) as refused:
        parse_query(query, kind)
    assert [tuple(fault) for fault in refused.value.faults] == [(pointer, reason)]
    assert str(refused.value.detail) == f"parameter {pointer[1:]} {reason}"


@pytest.mark.parametrize(
    ("kind", "settings", "pointer", "reason"),
    [
        ("kafka", {"bootstrap_servers": []}, "/bootstrap_servers", "must not be empty"),
        (
            "kafka",
            {"bootstrap_servers": ["kafka://b1"]},
            "/bootstrap_servers/0",
            "must be a name or an address, such as broker.example.com:9092",
        ),
        (
            "redis_stream",
            {"host": "redis://h"},
            "/host",
            "must be a name or an address, such as broker.example.com",
        ),
        (
            "sqs",
            {"region": "eu", "access_key_id": "k", "endpoint_url": "sqs.local"},
            "/endpoint_url",
            "must be an http or https URL without a path, such as https://sqs.example.com",
        ),
    ],
)
def test_a_fault_of_a_connection_is_said_in_words(
    kind: str, settings: dict[str, object], pointer: str, reason: str
) -> None:
    with pytest.raises(InvalidFields) as refused:
        read_connection({"name": "k", "type": kind, "settings": settings})
    assert [tuple(fault) for fault in refused.value.faults] == [(f"/settings{pointer}", reason)]


class Numbered(msgspec.Struct):
    number: Annotated[str, msgspec.Meta(pattern=r"^\d+'?$")]


def test_a_regular_expression_that_has_no_words_is_told_as_it_is() -> None:
    with pytest.raises(HttpProblem) as refused:
        decode_document(b'{"number": "x"}', Numbered)
    assert [fault.reason for fault in refused.value.faults] == [r"must match the regular expression ^\d+'?$"]


def test_an_empty_body_is_called_empty() -> None:
    with pytest.raises(HttpProblem) as refused:
        decode(b"")
    assert (refused.value.kind, refused.value.detail) == (Kind.MALFORMED, "the body is empty")
