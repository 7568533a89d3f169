"""JSON Schemas of answers that are put together by hand."""

from evertick.api import patterns
from evertick.api.schemas import Schema, array, instant, or_null, record, ref, text
from evertick.domain.states import OpenAttempt, Outcome

_NUMBER = {"type": "number"}
_COUNT = {"type": "integer", "minimum": 0}
_STALE = array(text(patterns.FENCING))
_FAULT = record({"pointer": text(description="An RFC 6901 JSON pointer; empty for the whole."), "detail": text()})

PROBLEM = record(
    {
        "type": text(format="uri", examples=["urn:evertick:problem:not-found"]),
        "title": text(),
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": text(),
        "instance": text(),
        "request_id": text(),
        "errors": array(_FAULT),
        "quota": text(description="Which quota stood in the way."),
    },
    "errors",
    "quota",
    text="What is wrong, as RFC 9457 has it.",
)


def answer_schemas() -> dict[str, Schema]:
    fire_time = record({"fire_at": instant(), "due_at": instant(), "local": text(), "notes": array(text())})
    lost = record({"at": instant(), "ticks": _COUNT, "first_local": text(), "last_local": text(), "note": text()})
    warning = record({"code": text(), "severity": text(), "message": text()})
    key = {"api_key": text(description="The secret, shown this once.")}
    return {
        "Problem": PROBLEM,
        "Runs": array(ref("Run")),
        "RunsAndGaps": array({"anyOf": [ref("Run"), ref("SkippedTicks")]}),
        "RunDetail": {"allOf": [ref("Run"), record({"attempts": array(_attempt())})]},
        "DeadLetters": array(ref("DeadLetter")),
        "Replaying": record(
            {"replayed": _COUNT, "run_ids": array(text(patterns.RUN_ID)), "continues": {"type": "boolean"}}
        ),
        "Upcoming": array(fire_time),
        "Preview": record(
            {
                "schedule": text(),
                "timezone": text(),
                "tzdb": text(),
                "description": text(),
                "upcoming": array(fire_time),
                "dst_notes": array(lost),
                "warnings": array(warning),
            }
        ),
        "Verdicts": array(
            record(
                {
                    "line": {"type": "integer", "minimum": 1},
                    "status": {"enum": [201, 400, 422]},
                    "job_id": text(patterns.JOB_ID),
                    "errors": array(_FAULT),
                },
                "job_id",
                "errors",
            )
        ),
        "Lease": record({"lease_seconds": _NUMBER, "attempts": array(_leased())}),
        "Heartbeat": record({"cancel": _STALE}),
        "Recorded": record({"recorded": _COUNT, "stale": _STALE}),
        "Cluster": record(
            {
                "version": text(),
                "tzdb": text(),
                "nodes": array(ref("Node")),
                "partitions": record({"total": _COUNT, "unheld": _COUNT}),
                "lag_seconds": _NUMBER,
            }
        ),
        "Node": record(
            {
                "node": text(),
                "region": text(),
                "version": text(),
                "started_at": instant(),
                "seen_at": instant(),
                "is_alive": {"type": "boolean"},
                "partitions": _COUNT,
            }
        ),
        "NewTenant": {"allOf": [ref("TenantView"), record(key)]},
        "NewKey": {"allOf": [ref("Key"), record(key)]},
        "Alive": record({"status": {"const": "alive"}}),
        "Ready": record({"ready": {"type": "boolean"}, "faults": array(text())}),
        "Metrics": text(),
        "OpenApi": {"type": "object"},
    }


def _attempt() -> Schema:
    results = [str(result) for result in Outcome]
    return record(
        {
            "token": text(patterns.FENCING),
            "attempt": {"type": "integer", "minimum": 1},
            "status": {"enum": [*(str(status) for status in OpenAttempt), *results]},
            "result": {"enum": [*results, None]},
            "due_at": instant(),
            "started_at": or_null(instant()),
            "finished_at": or_null(instant()),
            "duration_ms": {"type": ["integer", "null"]},
            "worker_id": or_null(text()),
            "result_code": {"type": ["integer", "null"]},
            "error": or_null(text()),
            "excerpt": or_null(text(description="The beginning of what came back.")),
        }
    )


def _leased() -> Schema:
    return record(
        {
            "token": text(patterns.FENCING, description="The number after the dot grows with every attempt of a job."),
            "run_id": text(patterns.RUN_ID),
            "job_id": text(patterns.JOB_ID),
            "name": text(),
            "handler": or_null(text()),
            "payload": {},
            "scheduled_at": instant(),
            "attempt": {"type": "integer", "minimum": 1},
            "reason": text(),
            "idempotency_key": text(),
            "timeout_seconds": _COUNT,
            "deadline": instant(),
        }
    )
